"""The page of `notebooks/elsewhere.md` answers in a browser what the model answers here."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from pages import ROOT, blocks
from zoo import made

import hybridflow as hf
from hybridflow import nn

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
NPM = shutil.which("npm")


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that says nothing."""

    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.skipif(NPM is None, reason="no npm on this machine, which gets onnxruntime-web")
def test_the_page_answers_what_the_model_answers(tmp_path: Path):
    pytest.importorskip("onnx")
    assert CHROMIUM is not None
    assert NPM is not None
    install = [NPM, "install", "--no-audit", "--no-fund", "--ignore-scripts", "onnxruntime-web@1"]
    got = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    if got.returncode:
        pytest.skip(f"npm cannot get onnxruntime-web: {got.stderr.strip()[-200:]}")
    (page,) = [block.text for block in blocks(ROOT / "notebooks/elsewhere.md") if block.language == "html"]
    (tmp_path / "index.html").write_text(page)
    nn.init.seed(0)
    model = nn.Sequential(nn.Linear(784, 64), nn.relu, nn.Linear(64, 10))
    x = np.random.default_rng(0).random((1, 784)).astype(np.float32)
    hf.export.onnx(tmp_path / "digits.onnx", model, hf.TensorSpec([None, 784]), quantize="dynamic")
    (tmp_path / "image.json").write_text(json.dumps(x[0].tolist()))
    expected = hf.quantize.dynamic(model)(x).numpy()[0]
    handler = functools.partial(Quiet, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
                   f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=60000", "--dump-dom"]
        url = f"http://127.0.0.1:{server.server_address[1]}/index.html"
        done = subprocess.run([CHROMIUM, *options, url], capture_output=True, text=True, timeout=180, check=True)
        server.shutdown()
    found = re.search(r'<output id="answer">(\{.*?\})</output>', done.stdout)
    assert found is not None, done.stdout[-2000:] + done.stderr[-2000:]
    answer = json.loads(found[1])
    assert answer["best"] == int(expected.argmax())
    np.testing.assert_allclose(answer["logits"], expected, rtol=1e-4, atol=1e-4)


LITERT = """
import sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter

interpreter = Interpreter(sys.argv[1])
interpreter.allocate_tensors()
(given,) = interpreter.get_input_details()
x = np.load(sys.argv[2])
interpreter.set_tensor(given["index"], x.transpose(0, 2, 3, 1) if x.ndim == 4 else x)
interpreter.invoke()
np.save(sys.argv[2], interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))
"""


@pytest.mark.skipif(
    "HYBRIDFLOW_ONNX2TF" not in os.environ, reason="HYBRIDFLOW_ONNX2TF=FOLDER/bin of an environment with onnx2tf"
)
@pytest.mark.parametrize("name", ["lenet", "resnet", "vit"])
def test_litert_answers_what_the_model_answers(name: str, tmp_path: Path):
    pytest.importorskip("onnx")
    folder = Path(os.environ["HYBRIDFLOW_ONNX2TF"])
    model, (x,) = made(name)
    wanted = jax.tree_util.tree_leaves(model.eval()(x))[0].numpy()
    hf.export.onnx(tmp_path / "model.onnx", model, hf.TensorSpec(x.shape, x.dtype))
    np.save(tmp_path / "calibration_image_sample_data_20x128x128x3_float32.npy", np.ones((20, 128, 128, 3), np.float32))
    np.save(tmp_path / "x.npy", x)
    path = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}  # it calls onnxsim
    subprocess.run(
        [folder / "onnx2tf", "-i", "model.onnx", "-o", "made", "-n"], cwd=tmp_path, env=path, check=True,
        capture_output=True, timeout=600,
    )
    subprocess.run(
        [folder / "python", "-c", LITERT, "made/model_float32.tflite", "x.npy"], cwd=tmp_path, env=path, check=True,
        capture_output=True, timeout=600,
    )
    found = np.load(tmp_path / "x.npy")
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
