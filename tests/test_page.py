"""The generated page of operations is current, and says what the records say."""

from __future__ import annotations

import hybridflow as hf
from hybridflow.core.op import REGISTRY, No, Op
from hybridflow.ops import page
from hybridflow.ops.generated import writer


def test_page_is_current(capsys):
    assert page.main(["--check"]) == 0, capsys.readouterr().err


def test_every_operation_is_on_it():
    text = page.PATH.read_text(encoding="utf-8")
    paths = page.public_paths()
    public = {id(function.op) for _, function in paths.values() if isinstance(getattr(function, "op", None), Op)}
    for path in paths:
        assert f"| `{path}(" in text, path
    for name, op in REGISTRY.items():
        assert id(op) in public or "." in name or f"| `{name}` |" in text, name
    assert {"hf.add", "hf.sum", "hf.nn.softmax", "hf.linalg.svd", "hf.fft.fft", "hf.random.normal"} <= paths.keys()


def test_rows_say_what_records_say():
    def row(path):
        (found,) = [line for line in page.PATH.read_text(encoding="utf-8").splitlines() if f"| `{path}(" in line]
        return found

    assert "2*a*b*c for (a, b), (b, c)" in row("hf.matmul")
    assert "| There is no derivative at 0; the gradient there is 0. |" in row("hf.nn.relu")
    assert '| Krizhevsky, "Convolutional deep belief networks on CIFAR-10", 2010. |' in row("hf.nn.relu6")
    assert "| bool, int, uint | none: integers and bools have no gradient |" in row("hf.bitwise_and")
    assert "| rule; keeps result |" in row("hf.exp")
    assert "| `Exp` |" in row("hf.exp")
    assert "| several |" in row("hf.nn.layer_norm")
    assert f"| none: {REGISTRY['inv'].onnx.why} |" in row("hf.linalg.inv")
    assert "shape=(), dtype=hf.float32, mean=0.0, std=1.0" in row("hf.random.normal")
    silent = [name for name, op in REGISTRY.items() if isinstance(op.vjp, No) and not op.vjp.why]
    assert not silent
    assert hf.nn.relu.op.name == "relu"


def test_a_stale_file_fails_the_check(tmp_path, capsys):
    stale = tmp_path / "README.md"
    main = writer(stale, lambda: "text", "python -m hybridflow.ops.page", "Write it.")
    assert main(["--check"]) == 1
    assert f"{stale} is not current: run python -m hybridflow.ops.page" in capsys.readouterr().err
    assert not stale.exists()
    assert main([]) == main(["--check"]) == 0
    assert stale.read_text(encoding="utf-8") == "text"
