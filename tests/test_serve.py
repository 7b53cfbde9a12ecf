"""`hf.serve`: requests as bytes, batches of requests, and a real server under what a network brings."""

from __future__ import annotations

import asyncio
import http.client
import http.server
import json
import math
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_models import MODELS, numbers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pages import README, ROOT, blocks
from served import Running

import hybridflow as hf
from hybridflow.serve import protocol
from hybridflow.serve.aside import LARGE, Aside, Copies
from hybridflow.serve.batcher import Batcher
from hybridflow.serve.models import Repository, Servable, why_alone
from hybridflow.serve.protocol import NAMES, Refused, Signature

FUZZED = int(os.environ.get("HYBRIDFLOW_FUZZED", "300"))
SPEC = hf.TensorSpec([None, 12])
TWO = Signature({"a": hf.TensorSpec([None, 3]), "b": hf.TensorSpec([None], "int64")}, {"y": hf.TensorSpec([None, 3])})


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    hf.export.save(folder / "mlp.hf", MODELS["mlp"].make(), MODELS["mlp"].spec,
                   sample=hf.export.Sample((numbers(2, 12, seed=3),)))
    hf.export.save(folder / "gpt.hf", MODELS["gpt"].make(), MODELS["gpt"].spec)
    return folder


# -- the protocol, without a server -----------------------------------------------------------------------------------


def asked(**changes: Any) -> dict[str, Any]:
    first = {"name": "a", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]} | changes
    return {"inputs": [first, {"name": "b", "shape": [1], "datatype": "INT64", "data": [7]}]}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("binary", [False, True])
def test_every_dtype_goes_there_and_back(name: str, binary: bool):
    spec = hf.TensorSpec([None], name)
    array = np.array([0, 1, 1, 0]).astype(spec.dtype)
    own: dict[str, Any] = {"name": "x", "shape": [4], "datatype": NAMES[name]}
    data = {"parameters": {"binary_data_size": array.nbytes}} if binary else {"data": protocol.to_lists(array)}
    head = json.dumps({"id": "7", "inputs": [own | data], "parameters": {"binary_data_output": binary}}).encode()
    signature = Signature({"x": spec}, {"x": spec})
    one = protocol.read_v2(head + (array.tobytes() if binary else b""), str(len(head)), signature)
    assert one.tensors["x"].dtype == spec.dtype
    assert one.tensors["x"].tobytes() == array.tobytes()
    body, headers = protocol.write_v2("m", "1", one, one.tensors)
    size = int(headers.get("inference-header-content-length", len(body)))
    response = json.loads(body[:size])
    assert (response["id"], response["outputs"][0]["datatype"]) == ("7", NAMES[name])
    assert body[size:] == (array.tobytes() if binary else b"")


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (asked(shape=[1, 4], data=[1, 2, 3, 4]), "must have the shape"),
        (asked(shape=[1, 4]), r"has the shape \[1, 4\], and data of the shape \[3\]"),
        (asked(datatype="FP64"), "must be FP32, got FP64"),
        (asked(datatype="BYTES"), "'BYTES' is not supported"),
        (asked(name="c"), "no input 'c'; the inputs are 'a', 'b'"),
        (asked(data=[1, 2, "3"]), "needs numbers, got '3', a text"),
        (asked(data=[1, 2, True]), "got True, a boolean"),
        (asked(data=[1, 2, None]), "got None, null"),
        (asked(data=[1, 2, 10**400]), "out of the range|no JSON"),
        (asked(data=[1, 2, 1e39]), "out of the range of FP32"),
        (asked(data=[[1, 2], [3]]), "different lengths"),
        (asked(shape=[-1, 3]), "list of sizes"),
        (asked(shape=[1 << 39, 1 << 39], data=[]), "and data of the shape"),
        (asked(parameters={"binary_data_size": 12}), "both data and binary_data_size"),
        ({"inputs": asked()["inputs"][:1]}, "the inputs must be 'a', 'b', got 'a'"),
        ({"inputs": asked()["inputs"][:1] * 2}, "given twice"),
        ({"inputs": 3}, "'inputs' must be a list, got an integer"),
        ({"inputs": [3]}, "must be an object, got an integer"),
        (asked() | {"outputs": [{"name": "z"}]}, "no output 'z'; the outputs are 'y'"),
        (asked() | {"id": 3}, "'id' must be a text"),
        ([], "must be a JSON object, got a list"),
    ],
)
def test_a_bad_request_gets_a_sentence(request_: Any, says: str):
    with pytest.raises(Refused, match=says) as refused:
        protocol.read_v2(json.dumps(request_).encode(), None, TWO)
    assert 400 <= refused.value.status < 500


@pytest.mark.parametrize(
    ("body", "length", "says"),
    [
        (b'{"inputs": [NaN]}', None, "no JSON"),
        (b"[" * 100_000, None, "no JSON"),
        (b'{"a":' * 100_000, None, "no JSON"),
        (b"\xff", None, "no JSON"),
        (b"{}", "3", "is 3, and the body has 2 bytes"),
        (b"{}", "-1", "must be a number of bytes"),
        (b"{}x", "2", "1 bytes are left behind"),
    ],
)
def test_bad_bytes_get_a_sentence(body: bytes, length: str | None, says: str):
    with pytest.raises(Refused, match=says):
        protocol.read_v2(body, length, TWO)


def test_rows_and_columns_of_tensorflow_serving():
    rows = {"instances": [{"a": [1, 2, 3], "b": 4}, {"a": [5, 6, 7], "b": 8}]}
    columns = {"inputs": {"a": [[1, 2, 3], [5, 6, 7]], "b": [4, 8]}}
    for request, in_rows in ((rows, True), (columns, False)):
        tensors, got = protocol.read_tf(request, TWO)
        assert got == in_rows
        assert tensors["a"].tolist() == [[1, 2, 3], [5, 6, 7]]
        assert tensors["b"].tolist() == [4, 8]
    results = {"y": np.array([[1.5, np.nan]], np.float32)}
    assert json.loads(protocol.write_tf(results, True)) == {"predictions": [[1.5, None]]}
    assert json.loads(protocol.write_tf(results, False)) == {"outputs": [[1.5, None]]}
    assert json.loads(protocol.write_tf({"a": np.ones(2), "b": np.zeros(2)}, True)) == {
        "predictions": [{"a": 1.0, "b": 0.0}] * 2
    }
    for bad in ({}, rows | columns, {"instances": 3}, {"instances": [{"a": 1}, 3]}, {"instances": [1]}):
        with pytest.raises(Refused):
            protocol.read_tf(bad, TWO)


@pytest.mark.parametrize("piece", [1, 2, 5, 24, 1 << 13])
@pytest.mark.parametrize("shape", [(), (0,), (4,), (7,), (3, 2), (2, 0), (2, 3, 4), (9, 1)])
def test_what_is_written_in_pieces_is_one_text(shape: tuple[int, ...], piece: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(protocol, "PIECE", piece)
    a = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    b = a.astype(np.int32) + 1
    for results in ({"a": a}, {"a": a, "b": b}):
        lists = {name: one.tolist() for name, one in results.items()}
        columns = json.loads(protocol.write_tf(results, False))["outputs"]
        assert columns == (lists["a"] if len(results) == 1 else lists)
        if shape:
            rows = json.loads(protocol.write_tf(results, True))["predictions"]
            in_rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
            assert rows == (lists["a"] if len(results) == 1 else in_rows)
        for binary in (False, True):
            asked = protocol.InferRequest(results, dict.fromkeys(results, binary), None)
            body, headers = protocol.write_v2("m", "1", asked, results)
            size = int(headers.get("inference-header-content-length", len(body)))
            data = [one.get("data") for one in json.loads(body[:size])["outputs"]]
            flat = [one.reshape(-1).tolist() for one in results.values()]
            assert data == ([None] * len(flat) if binary else flat)
            assert body[size:] == (b"".join([one.tobytes() for one in results.values()]) if binary else b"")


def test_another_process_reads_and_writes_the_same():
    graph = hf.compile(lambda a, b: (a @ b, a.sum())).graph(hf.TensorSpec(["n", None]), hf.TensorSpec([None, 3]))
    specs = dict(zip("ab", graph.input_specs, strict=True))
    signature = protocol.Signature(specs, {"y": graph.output_specs[0]})
    a, b = np.arange(8, dtype=np.float32).reshape(4, 2), np.ones((2, 3), np.float32)
    asked = [
        {"inputs": [{"name": name, "datatype": "FP32", "shape": [*one.shape], "data": one.reshape(-1).tolist()}
                    for name, one in given.items()]}
        for given in ({"a": a, "b": b}, {"a": a.T, "b": b}, {"a": a})
    ]
    calls: list[tuple[Any, ...]] = [(protocol.read_v2, json.dumps(one).encode(), None, signature) for one in asked]
    bodies = [json.dumps({"inputs": {"a": a.tolist(), "b": one}}).encode() for one in (b.tolist(), 3, [[None]])]
    calls += [(protocol.read_predict, body, {"f": signature}, "f") for body in bodies]
    for dtype in protocol.DTYPES.values():
        results = {"y": np.arange(12).astype(dtype).reshape(4, 3), "z": np.ones((), dtype)}
        calls += [(protocol.write_tf, results, False), (protocol.write_tf, {"y": results["y"].T}, True)]
        calls += [(protocol.write_v2, "m", "1", protocol.InferRequest({}, dict.fromkeys(results, binary), "i"), results)
                  for binary in (False, True)]
    here, there = Aside(), Aside(Copies(0))

    async def outcomes(aside: Aside) -> list[Any]:
        found = await asyncio.gather(*[aside.call("m", LARGE, LARGE, *call) for call in calls], return_exceptions=True)
        return [[bytes(part) if isinstance(part, memoryview) else part for part in one] if isinstance(one, tuple)
                else bytes(one) if isinstance(one, memoryview) else one for one in found]

    for call, one, other in zip(calls, asyncio.run(outcomes(here)), asyncio.run(outcomes(there)), strict=True):
        assert repr(other) == repr(one), call
    for aside in (here, there):
        aside.stop()


@settings(max_examples=FUZZED, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_mutated_body_is_read_or_refused(data: st.DataObject):
    head = json.dumps(asked(**data.draw(st.sampled_from([{}, {"parameters": {"binary_data_size": 12}}])))).encode()
    body = bytearray(head + data.draw(st.sampled_from([b"", bytes(12)])))
    for _ in range(data.draw(st.integers(0, 4))):
        place, new = data.draw(st.integers(0, len(body))), data.draw(st.binary(max_size=6) | st.sampled_from(
            [b"[", b"]", b"{", b"}", b"null", b"-1", b"1e999", b'"', b",", b":", b"true", b"9" * 30]))
        body[place : place + data.draw(st.integers(0, 6))] = new
    for length in (None, str(len(head)), data.draw(st.text(max_size=4))):
        try:
            one = protocol.read_v2(bytes(body), length, TWO)
        except Refused:
            continue
        else:
            assert one.tensors["a"].dtype == np.float32
            assert one.tensors["a"].shape[1:] == (3,)


# -- which graphs may be padded ---------------------------------------------------------------------------------------


def saved(folder: Path, function: Any, *specs: Any) -> Any:
    hf.export.save(folder / "f.hf", function, *(specs or (SPEC,)), overwrite=True)
    return hf.export.load(folder / "f.hf", copy=True).functions["predict"]


@pytest.mark.parametrize("name", ["mlp", "convnet", "gpt", "bfloat16"])
def test_rows_that_are_independent_share_a_batch(tmp_path: Path, name: str):
    assert why_alone(saved(tmp_path, MODELS[name].make(), MODELS[name].spec)) is None


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x - hf.mean(x, axis=0), "mean"),
        (lambda x: hf.softmax(x, axis=0) if hasattr(hf, "softmax") else hf.nn.softmax(x, axis=0), "softmax"),
        (lambda x: x[::-1], "getitem|flip"),
        (lambda x: hf.cumulative_sum(x, axis=0), "cumulative_sum"),
        (lambda x: x + hf.arange(x.shape[0])[:, None], "arange"),
        (lambda x: x / x.shape[0], "divide|number|full"),
        (lambda x: x @ x.T @ x, "matmul"),
        (lambda x: x + hf.random.normal(x.shape), "random"),
        (lambda x: hf.sort(x, axis=0), "sort"),
        (lambda x: x.T, "no row"),
        (lambda x: x.reshape((12, -1)).T, "reshape|shape"),
        (lambda x: hf.roll(x, 1, axis=0), "roll"),
        (lambda x: hf.take(x, hf.astype(x[:, 0], hf.int32) * 0, axis=0), "gather"),
    ],
)
def test_rows_that_are_mixed_do_not(tmp_path: Path, function: Any, why: str):
    assert re.search(why, why_alone(saved(tmp_path, function)) or "")


def test_each_row_is_what_it_is_alone(tmp_path: Path):
    """What the analysis allows is so: changing one row changes no other, whatever is beside it."""
    for name in ("mlp", "convnet", "gpt", "bfloat16"):
        case = MODELS[name]
        function = saved(tmp_path, case.make(), case.spec)
        x = np.array(case.argument(5))
        other = x.copy()
        other[2] = 1
        (key,) = function.inputs
        before, after = function.by_name({key: x}), function.by_name({key: other})
        for path in before:
            rest = [0, 1, 3, 4]
            np.testing.assert_allclose(
                np.asarray(before[path], np.float32)[rest], np.asarray(after[path], np.float32)[rest], case.rtol, 1e-6
            )


# -- batches ----------------------------------------------------------------------------------------------------------


def test_results_are_those_of_a_call_alone_whatever_else_is_in_the_batch(artifacts: Path):
    sizes: list[int] = []
    batcher = Batcher(8, 0.05, 100, sizes.append)
    repository = Repository([artifacts / "mlp.hf"], 8)
    assert repository.refresh(batcher.compute) == ["model mlp version 1 is ready"]
    servable = repository.model("mlp").function()
    assert (servable.alone, servable.buckets) == (None, (1, 2, 4, 8))
    requests = [numbers(1 + seed % 3, 12, seed=seed) for seed in range(12)] + [numbers(20, 12)]
    futures = [batcher.submit(servable, {"x": x}) for x in requests]
    local = hf.export.load(artifacts / "mlp.hf").predict
    for x, future in zip(requests, futures, strict=True):
        for name, value in local.by_name({"x": x}).items():
            np.testing.assert_allclose(future.result(30)[name], np.asarray(value), 2e-5, 1e-6)
    assert max(size for size in sizes if size <= 8) > 3
    batcher.stop()


def test_a_failed_check_is_the_error_of_its_request_alone(artifacts: Path):
    batcher = Batcher(8, 0.2, 100)
    repository = Repository([artifacts], 8)
    repository.refresh(batcher.compute)
    servable = repository.model("gpt").function()
    hold = threading.Event()
    threading.Thread(target=batcher.compute, args=(lambda: hold.wait(30) and None, "gpt")).start()
    time.sleep(0.1)
    futures = [batcher.submit(servable, {"tokens": np.array([[1, one]], np.int32)}) for one in (2, 99, 3)]
    hold.set()
    assert futures[0].result(30)
    assert futures[2].result(30)
    with pytest.raises(Refused, match="index 99 is out of range"):
        futures[1].result(30)
    batcher.stop()


def test_a_full_queue_refuses_and_a_cancelled_request_frees_its_place(artifacts: Path):
    batcher = Batcher(8, 0, 2)
    servable = Servable(hf.export.load(artifacts / "mlp.hf").predict, 8)
    hold = threading.Event()
    threading.Thread(target=batcher.compute, args=(lambda: hold.wait(30) and None, "")).start()
    time.sleep(0.1)
    first, _ = [batcher.submit(servable, {"x": numbers(1, 12)}) for _ in range(2)]
    with pytest.raises(Refused, match="queue is full") as refused:
        batcher.submit(servable, {"x": numbers(1, 12)})
    assert refused.value.status == 503
    assert first.cancel()
    last = batcher.submit(servable, {"x": numbers(1, 12)})
    hold.set()
    assert last.result(30)
    assert batcher.waiting == 0
    batcher.stop()


def test_versions_a_broken_one_and_one_that_is_replaced(tmp_path: Path, artifacts: Path):
    models = Repository([tmp_path], 2)

    def refresh() -> list[str]:
        return models.refresh(lambda work, model: work())

    (tmp_path / "7").mkdir()  # looks like a version of this folder, and hides no model in it
    shutil.copytree(artifacts / "mlp.hf", tmp_path / "m" / "1")
    assert refresh() == ["model m version 1 is ready"]
    assert refresh() == []
    shutil.copytree(artifacts / "mlp.hf", tmp_path / "m" / "3")
    refresh()
    assert models.model("m").version == "3"
    old = models.model("m", "3")
    (tmp_path / "m" / "3").rename(tmp_path / ".away")
    shutil.copytree(artifacts / "mlp.hf", tmp_path / "m" / "3")
    (tmp_path / "m" / "3" / "predict.ir").write_text("broken")
    (line,) = refresh()
    assert "is broken, and the version before serves on" in line
    assert models.model("m", "3") is old
    assert refresh() == []
    shutil.rmtree(tmp_path / "m" / "3")
    assert refresh() == []
    assert refresh() == ["model m version 3 is gone"]
    assert models.model("m").version == "1"
    with pytest.raises(Refused, match="no version '9'; it has 1"):
        models.model("m", "9")


# -- programs for bounds ----------------------------------------------------------------------------------------------


def expect(servable: Servable, function: Any, tokens: Any, rows: bool = True) -> None:
    """Compare what a servable computes with the function's own call."""
    given = {next(iter(function.inputs)): tokens}
    found = servable.run_rows(given, len(tokens)) if rows else servable.run(given)
    for name, value in function.by_name(given).items():
        np.testing.assert_allclose(found[name], np.asarray(value), 2e-4, 1e-5)


def test_sequences_run_in_programs_that_are_compiled_before(artifacts: Path, monkeypatch: pytest.MonkeyPatch):
    function = hf.export.load(artifacts / "gpt.hf").predict
    servable = Servable(function, 8)
    for warm_up in servable.warmups():
        warm_up()
    assert servable.programs is not None
    assert (servable.alone, servable.buckets, len(servable.programs)) == (None, (1, 8), 2)
    tokens = [np.ones((rows, length), np.int32) for rows, length in ((1, 3), (2, 8), (5, 6))]
    expected = [function.by_name({"tokens": one}) for one in tokens]

    def fails(tensors: Any) -> Any:
        raise AssertionError("it ran eagerly")

    with monkeypatch.context() as patch:
        patch.setattr(servable._function, "by_name", fails)
        found = [servable.run_rows({"tokens": one}, len(one)) for one in tokens]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one["output"], np.asarray(other["output"]), 2e-4, 1e-5)
    expect(servable, function, np.ones((1, 12), np.int32))  # beyond the bounds: eagerly, while a program is made
    assert servable._compiling is not None
    servable._compiling.join()
    assert len(servable.programs) == 3
    with monkeypatch.context() as patch:
        patch.setattr(servable._function, "by_name", fails)
        servable.run_rows({"tokens": np.ones((1, 16), np.int32)}, 1)
    with pytest.raises(IndexError, match="index 99"):
        servable.run_rows({"tokens": np.full((1, 4), 99, np.int32)}, 1)


def test_rows_that_are_mixed_run_in_programs_too(tmp_path: Path):
    function = saved(tmp_path, lambda x: x - hf.mean(x, axis=0))
    servable = Servable(function, 8)
    for warm_up in servable.warmups():
        warm_up()
    assert servable.alone
    assert servable.programs is not None
    assert len(servable.programs) == 1
    for rows in (1, 3, 8, 20):
        expect(servable, function, numbers(rows, 12), rows=False)


def test_what_has_no_rule_for_padding_runs_eagerly(tmp_path: Path):
    function = saved(tmp_path, lambda x: hf.linalg.inv(x @ x.T))
    servable = Servable(function, 8)
    for warm_up in servable.warmups():
        warm_up()
    assert servable.programs is not None
    assert "inv" in (servable.programs.why_not or "")
    expect(servable, function, numbers(3, 12), rows=False)


# -- a server process -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(artifacts: Path) -> Iterator[Running]:
    pytest.importorskip("uvicorn")
    running = Running(artifacts / "mlp.hf", artifacts / "gpt.hf")
    yield running
    workers = running.workers()
    assert running.end() == 0
    assert not [one for one in workers if Path(f"/proc/{one}").exists()]


ROW = {"instances": [[0.5] * 12]}


def test_a_request_as_a_shell_makes_it(server: Running):
    status, answer = server.ask("/v1/models/mlp:predict", ROW)
    assert status == 200
    assert {*answer["predictions"][0]} == {"logits", "hidden_0"}
    assert server.ask("/v1/models/mlp")[1]["model_version_status"][0]["state"] == "AVAILABLE"
    assert "predict" in server.ask("/v1/models/mlp/metadata")[1]["metadata"]["signature_def"]["signature_def"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/models/none:predict", ROW, 404),
        ("/v1/models/mlp/versions/7:predict", ROW, 404),
        ("/v1/models/mlp:predict", None, 405),
        ("/v1/models/mlp:predict", b"{", 400),
        ("/v1/models/mlp:predict", ROW | {"signature_name": "train"}, 404),
        ("/v1/models/gpt:predict", {"instances": [[1, 99]]}, 400),
        ("/v2/models/mlp/infer", {}, 400),
        ("/nothing", None, 404),
    ],
)
def test_what_the_server_refuses(server: Running, path: str, body: Any, status: int):
    got, answer = server.ask(path, body)
    assert got == status
    assert answer["error"]
    assert server.ask("/v1/models/mlp:predict", ROW)[0] == 200


def test_metrics_have_no_labels_of_unknown_models(server: Running):
    server.ask("/v1/models/unheard:predict", ROW)
    server.ask("/v1/models/mlp:predict", ROW)
    text = server.ask("/metrics")[1]
    assert "unheard" not in text
    assert 'hybridflow_requests_total{model="mlp",version="1",status="200"}' in text
    assert "hybridflow_batch_rows_bucket" in text


def test_tritonclient(server: Running, artifacts: Path):
    client_of = pytest.importorskip("tritonclient.http")
    client = client_of.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=4)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("mlp")
    assert client.is_model_ready("mlp", "1")
    assert not client.is_model_ready("none")
    metadata = client.get_model_metadata("mlp")
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 12]}]
    expected = hf.export.load(artifacts / "mlp.hf").predict.by_name({"x": numbers(3, 12)})
    for binary in (True, False):
        x = client_of.InferInput("x", [3, 12], "FP32")
        x.set_data_from_numpy(numbers(3, 12), binary_data=binary)
        outputs = [client_of.InferRequestedOutput(name, binary_data=binary) for name in expected]
        pending = [client.async_infer("mlp", [x], outputs=outputs, request_id=str(n)) for n in range(8)]
        for number, one in enumerate(pending):
            result = one.get_result()
            assert result.get_response()["id"] == str(number)
            for name, value in expected.items():
                np.testing.assert_allclose(result.as_numpy(name), np.asarray(value), 2e-5, 1e-6)
    wrong = client_of.InferInput("x", [3, 12], "FP64")
    wrong.set_data_from_numpy(numbers(3, 12).astype(np.float64))
    with pytest.raises(Exception, match="must be FP32, got FP64"):
        client.infer("mlp", [wrong])
    client.close()


def raw(server: Running, data: bytes, timeout: float = 10) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout) as connection:
        received = b""
        try:
            connection.sendall(data)
            while part := connection.recv(65536):
                received += part
        except (ConnectionResetError, BrokenPipeError):
            assert received or len(data) > 1 << 16
        return received


def test_heads_and_bodies_beyond_the_limits(server: Running):
    long = b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: " + b"x" * (70 << 10)
    assert raw(server, long).startswith(b"HTTP/1.1 431")
    large = b"POST /v1/models/mlp:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n"
    assert raw(server, large).startswith(b"HTTP/1.1 413")
    assert raw(server, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert server.ask("/v1/models/mlp:predict", ROW)[0] == 200


@pytest.mark.skipif("HYBRIDFLOW_SLOW_SERVE" not in os.environ, reason="waits for half a minute")
def test_slow_heads_and_bodies(server: Running):
    assert raw(server, b"GET / HTTP/1.1\r\nhost: x\r\n", 20).startswith(b"HTTP/1.1 408")
    slow = b"POST /v1/models/mlp:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"
    assert raw(server, slow, 40).startswith(b"HTTP/1.1 408")


def test_a_killed_worker_is_replaced_and_sigterm_loses_nothing(artifacts: Path, tmp_path: Path):
    pytest.importorskip("uvicorn")
    running = Running(artifacts / "mlp.hf", "--workers", 2, "--max-batch", 4, log=tmp_path / "log")
    workers = running.workers()
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    until, asked = time.monotonic() + 20, 0
    while len([*{*running.workers()} - {workers[0]}]) < 2:
        assert time.monotonic() < until
        assert running.ask("/v1/models/mlp:predict", ROW)[0] == 200
        asked += 1

    def load() -> list[int]:
        """Ask on one connection until the server closes it, and says so if a request is under way."""
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=20)
        statuses: list[int] = []
        with closing(connection):
            while True:
                try:
                    connection.request("POST", "/v1/models/mlp:predict", json.dumps(ROW))
                    response = connection.getresponse()
                    response.read()
                except ConnectionError:  # the server's log knows whether it had accepted this request
                    return statuses
                statuses.append(response.status)
                if response.getheader("connection") == "close":
                    return statuses

    with ThreadPoolExecutor(8) as pool:
        loads = [pool.submit(load) for _ in range(8)]
        time.sleep(1)
        workers = running.workers()
        assert running.end() == 0
    statuses = [status for one in loads for status in one.result()]
    assert {*statuses} == {200}
    assert len(statuses) > 100
    log = [json.loads(line) for line in (tmp_path / "log").read_text(encoding="utf-8").splitlines()]
    assert len([one for one in log if one.get("path", "").endswith(":predict")]) == len(statuses) + asked
    assert not [one for one in workers if Path(f"/proc/{one}").exists()]
    assert any("is replaced" in line for line in running.lines)


def test_overload_answers_or_says_503(artifacts: Path):
    pytest.importorskip("uvicorn")
    running = Running(artifacts / "mlp.hf", "--max-queue", 2, "--max-delay", "30ms")
    with ThreadPoolExecutor(16) as pool:
        statuses = [*pool.map(lambda _: running.ask("/v1/models/mlp:predict", ROW)[0], range(200))]
    assert {*statuses} == {200, 503}
    assert running.ask("/v1/models/mlp:predict", ROW)[0] == 200
    assert running.end() == 0


def test_a_token(artifacts: Path, tmp_path: Path):
    pytest.importorskip("uvicorn")
    (tmp_path / "token").write_text("secret\n")
    running = Running(artifacts / "mlp.hf", "--token-file", tmp_path / "token")
    assert running.ask("/v1/models/mlp:predict", ROW)[0] == 401
    assert running.ask("/v1/models/mlp:predict", ROW, Authorization="Bearer wrong")[0] == 401
    assert running.ask("/v1/models/mlp:predict", ROW, Authorization="Bearer secret")[0] == 200
    assert running.end() == 0


# -- the page, and what the README says -------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PROBE = """<script>setTimeout(() => { at("ask").click(); setTimeout(look, 1500); }, 1500);</script></body>"""
NARROW = """<iframe src="/" width=390></iframe><script>
setTimeout(() => { document.title = "width " + frames[0].document.documentElement.scrollWidth; }, 4000);</script>"""


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_the_page_shows_the_models_and_asks_one(server: Running, artifacts: Path, tmp_path: Path):
    class Front(http.server.BaseHTTPRequestHandler):
        """The server's page with a script that clicks, and the server itself behind it."""

        def do_GET(self) -> None:
            size = int(self.headers.get("content-length", 0))
            answer = server.ask(self.path, self.rfile.read(size) if size else None)[1]
            text = answer if isinstance(answer, str) else json.dumps(answer)
            text = {"/": text.replace("</body>", PROBE), "/narrow": NARROW}.get(self.path, text)
            self.send_response(200)
            self.send_header("content-type", f"text/{'html' if text.startswith('<') else 'plain'}; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET  # noqa: N815 (the names that http.server calls)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Front) as front:
        threading.Thread(target=front.serve_forever, daemon=True).start()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
                   f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=8000", "--dump-dom"]
        assert CHROMIUM is not None
        page, narrow = [
            subprocess.run([CHROMIUM, *options, f"http://127.0.0.1:{front.server_address[1]}{path}"],
                           capture_output=True, text=True, timeout=60, check=True).stdout
            for path in ("/", "/narrow")
        ]
        front.shutdown()
    assert "mlp 1" in page
    assert "in batches" in page
    said = re.search(r'<pre id="said">(.*?)</pre>', page)
    assert said, page
    expected = hf.export.load(artifacts / "mlp.hf").predict.by_name({"x": numbers(2, 12, seed=3)[:1]})
    for name, value in json.loads(said[1])["outputs"].items():  # the sample that the artifact was saved with
        np.testing.assert_allclose(value, np.asarray(expected[name]), 2e-5, 1e-6)
    assert len(re.findall(r'class="bar"', page)) > 10
    width = re.search(r"<title>width (\d+)", narrow)
    assert width, narrow
    assert int(width[1]) <= 390


def test_the_readme_serves_as_it_says(tmp_path: Path):
    pytest.importorskip("uvicorn")
    section = {block.language: block.text for block in blocks(README) if block.section == "Serve"}
    subprocess.run(
        [sys.executable, "-c", section["python"]], check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    serve, ask, look = section["sh"].splitlines()
    assert serve == "hybridflow serve iris.hf --port 8000 &"
    running = Running(tmp_path / "iris.hf")
    for line in (ask, look):
        command = [part.replace("localhost:8000", f"127.0.0.1:{running.port}") for part in shlex.split(line)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "predictions" in answer or "hybridflow_requests_total" in answer
    assert running.end() == 0


# -- the application, without a server --------------------------------------------------------------------------------


def ask(app: Any, path: str, body: Any = None, root: str = "") -> tuple[int, dict[str, str], Any]:
    """Make a request to an ASGI application; return the status, the headers and the JSON."""
    sent: list[dict[str, Any]] = []
    given = [{"type": "http.request", "body": b"" if body is None else json.dumps(body).encode()}]

    async def receive() -> dict[str, Any]:
        if given:
            return given.pop()
        await asyncio.Event().wait()  # the client stays
        raise AssertionError

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "POST" if body else "GET", "path": root + path, "root_path": root, "headers": []}
    asyncio.run(app(scope, receive, send))
    start, end = sent
    headers = {key.decode(): value.decode() for key, value in start["headers"]}
    return start["status"], headers, json.loads(end["body"])


@pytest.fixture
def pairs(tmp_path: Path) -> Iterator[Any]:
    """An application that serves a function of several inputs with several results."""

    def sums(x: Any, y: Any) -> dict[str, Any]:
        return {"sum": x + y, "larger": hf.maximum(x, y)}

    hf.export.save(tmp_path / "pairs.hf", sums, hf.TensorSpec(["n", 2]), hf.TensorSpec(["n", 2]))
    app = hf.serve.app(tmp_path / "pairs.hf", reload=None)
    yield app
    app.stop()


PAIRS = {"inputs": [
    {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]},
    {"name": "y", "shape": [2, 2], "datatype": "FP32", "data": [4, 3, 2, 1]},
]}


def test_several_inputs_and_results_under_a_prefix(pairs: Any):
    assert ask(pairs, "/v2/health/ready", root="/models")[0] == 200
    status, _, answer = ask(pairs, "/v2/models/pairs/infer", PAIRS, root="/models")
    assert status == 200
    found = {one["name"]: one["data"] for one in answer["outputs"]}
    assert found == {"sum": [5, 5, 5, 5], "larger": [4, 3, 3, 4]}


def test_a_fault_of_ours_is_a_500_of_one_request(
    pairs: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fails(self: Any, *_: Any) -> Any:
        raise ValueError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(Servable, "run_rows", fails)
        status, headers, answer = ask(pairs, "/v2/models/pairs/infer", PAIRS)
    assert status == 500
    assert headers["x-request-id"] in answer["error"]
    assert "planted" not in answer["error"]
    log = capsys.readouterr().err
    assert headers["x-request-id"] in log
    assert "ValueError: planted" in log
    assert ask(pairs, "/v2/models/pairs/infer", PAIRS)[0] == 200
