"""Running a server: TLS, several workers, the log, versions that are replaced under load, and other applications."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import Running

import hybridflow as hf
from hybridflow.cli.main import main
from hybridflow.core.errors import ArgumentError
from hybridflow.serve.batcher import Batcher
from hybridflow.serve.load import Figures, load, sample_request, target
from hybridflow.serve.models import Servable
from hybridflow.serve.protocol import Refused
from hybridflow.serve.rpc import as_v2, messages
from hybridflow.serve.supervisor import Server, serve
from hybridflow.serve.worker import LOWER_PRIORITY

ROW = {"instances": [[0.5] * 12]}
PATH = "/v1/models/m:predict"


def saved(path: Path, factor: float) -> Path:
    hf.export.save(path, lambda x: x * factor, hf.TensorSpec([None, 12]))
    return path


# -- TLS, workers, logs -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on this machine, to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
               "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def test_tls_request_ids_the_log_and_metrics_of_all_workers(certificate: tuple[Path, Path], tmp_path: Path):
    pytest.importorskip("uvicorn")
    log = tmp_path / "log"
    running = Running(
        saved(tmp_path / "m.hf", 2.0), "--workers", 2, "--tls-certificate", certificate[0], "--tls-key", certificate[1],
        log=log, trust=certificate[0],
    )
    assert any("https://" in line for line in running.lines) or running.scheme == "https"
    for number in range(40):
        status, answer = running.ask(PATH, ROW, **{"x-request-id": f"mine-{number}"})
        assert (status, answer) == (200, {"predictions": [[1.0] * 12]})
    assert running.ask(PATH, ROW, **{"x-request-id": "two words"})[0] == 200
    deadline = time.monotonic() + 20
    while True:  # workers write their numbers for each other a few times a second
        text = running.ask("/metrics")[1]
        found = re.search(r'hybridflow_requests_total\{model="m",version="1",status="200"\} (\d+)', text)
        if found and int(found[1]) == 41:
            break
        assert time.monotonic() < deadline, text
    assert int(re.search(r"hybridflow_request_seconds_count\{.*\} (\d+)", text)[1]) == 41  # pyright: ignore
    assert running.end() == 0
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    asked = [one for one in lines if one.get("path") == PATH]
    assert {f"mine-{number}" for number in range(40)} < {one["id"] for one in asked}
    assert not [one for one in asked if " " in one["id"]]
    assert all([{"time", "id", "method", "status", "seconds", "bytes"} <= {*one} for one in asked])


def test_files_that_are_no_certificate(tmp_path: Path):
    pytest.importorskip("uvicorn")
    path = saved(tmp_path / "m.hf", 2.0)
    (tmp_path / "bad.pem").write_text("nothing")
    for server, says in (
        (Server(certificate=str(tmp_path / "bad.pem")), "are no certificate and key|bad.pem"),
        (Server(key=str(tmp_path / "bad.pem")), "needs its certificate"),
    ):
        with pytest.raises(ArgumentError, match=says):
            serve([path], hf.serve.Options(), server)


# -- versions that are replaced ---------------------------------------------------------------------------------------


def test_replacing_an_artifact_under_load_drops_no_request(tmp_path: Path):
    pytest.importorskip("uvicorn")
    (tmp_path / "models").mkdir()
    saved(tmp_path / "models" / "m.hf", 2.0)
    running = Running(tmp_path / "models", "--reload", "100ms")
    made = target(f"http://127.0.0.1:{running.port}{PATH}", json.dumps(ROW).encode())
    figures: list[Figures] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            figures.append(load(made, clients=8, requests=100_000, seconds=0.5))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for factor in (4.0, 6.0):
            replace(saved(tmp_path / "new.hf", factor), tmp_path / "models" / "m.hf")
            wait_for(running, factor / 2)
        broken = saved(tmp_path / "new.hf", 8.0)
        (broken / "predict.ir").write_text("broken")
        replace(broken, tmp_path / "models" / "m.hf")
        deadline = time.monotonic() + 20
        while not running.ask("/v2/health/ready")[1]["faults"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert running.ask("/v2/health/ready")[0] == 200
        assert running.ask(PATH, ROW)[1] == {"predictions": [[3.0] * 12]}
    finally:
        stop.set()
        asking.join()
    assert running.end() == 0
    assert {status for one in figures for status in one.statuses} == {200}
    assert sum([one.broken for one in figures]) == 0


def replace(new: Path, old: Path) -> None:
    """Put an artifact in the place of another, as the documentation says: by renames."""
    old.rename(old.with_name(".old"))
    new.rename(old)
    shutil.rmtree(old.with_name(".old"))


def wait_for(running: Running, value: float) -> None:
    deadline = time.monotonic() + 20
    while running.ask(PATH, ROW) != (200, {"predictions": [[value] * 12]}):
        assert time.monotonic() < deadline
        time.sleep(0.05)


# -- in another application -------------------------------------------------------------------------------------------


def test_mounted_in_another_application(tmp_path: Path):
    applications = pytest.importorskip("starlette.applications")
    routing = pytest.importorskip("starlette.routing")
    served = hf.serve.app(saved(tmp_path / "m.hf", 2.0), reload=None)
    whole = applications.Starlette(routes=[routing.Mount("/served", app=served)])
    for path, status in (("/served/v2/health/ready", 200), (f"/served{PATH}", 200), (PATH, 404), ("/served/no", 404)):
        body = json.dumps(ROW).encode() if path.endswith("predict") else b""
        assert asked(whole, path, body) == status
    served.stop()


def asked(app: Any, path: str, body: bytes) -> int:
    """Make a request to an ASGI application; return the status."""
    sent: list[dict[str, Any]] = []
    given = [{"type": "http.request", "body": body}]

    async def receive() -> dict[str, Any]:
        if given:
            return given.pop()
        await asyncio.Event().wait()  # the client stays
        raise AssertionError

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "POST" if body else "GET", "path": path, "root_path": "", "headers": [],
             "query_string": b"", "scheme": "http", "server": ("x", 80), "http_version": "1.1"}
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"]


# -- load -------------------------------------------------------------------------------------------------------------


def test_bench_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("uvicorn")
    running = Running(saved(tmp_path / "m.hf", 2.0))
    url = f"http://localhost:{running.port}"
    assert main(["bench-serve", url, "--clients", "4", "--requests", "100"]) == 0
    said = capsys.readouterr().out
    assert "responses: 100 x 200; broken connections: 0" in said
    assert sample_request(url)[0].endswith(PATH)
    figures = load(target(f"{url}/nothing"), clients=2, requests=10, seconds=10)
    assert figures.statuses == {404: 10}
    assert running.end() == 0
    assert main(["bench-serve", url]) == 2
    assert "does not list its models" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("url", ["http://192.0.2.1:80/", "https://localhost/", "ftp://localhost/", "http://"])
def test_load_is_for_this_machine_alone(url: str):
    with pytest.raises(ArgumentError, match="bench-serve"):
        target(url)


@pytest.mark.parametrize("bound", [{"clients": 5000}, {"requests": 0}, {"seconds": 1e9}])
def test_load_is_bounded(bound: dict[str, Any]):
    with pytest.raises(ArgumentError, match=next(iter(bound))):
        load(target("http://127.0.0.1:9/"), **{"clients": 1, "requests": 1, "seconds": 1.0, **bound})


# -- gRPC -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[Any]:
    """A server of a function of two inputs, and Triton's client of it."""
    pytest.importorskip("uvicorn")
    pytest.importorskip("grpc")
    client_of = pytest.importorskip("tritonclient.grpc")
    hf.export.save(tmp_path / "pairs.hf", lambda x, y: {"sum": x + y, "larger": x > y},
                   hf.TensorSpec(["n", 2]), hf.TensorSpec(["n", 2]))
    (tmp_path / "token").write_text("secret")
    running = Running(tmp_path / "pairs.hf", "--grpc-port", 0, "--token-file", tmp_path / "token")
    (line,) = [one for one in running.first if "gRPC" in one]
    client = client_of.InferenceServerClient(line.rsplit(" ", 1)[1].strip())
    yield running, client, client_of
    client.close()
    assert running.end() == 0


def test_tritonclient_over_grpc(calls: Any):
    running, client, of = calls
    mine = {"authorization": "Bearer secret"}
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("pairs", headers=mine)
    assert not client.is_model_ready("none", headers=mine)
    assert client.get_server_metadata(headers=mine).name == "hybridflow"
    found = client.get_model_metadata("pairs", headers=mine)
    assert [(one.name, one.datatype, *one.shape) for one in found.inputs] == [(name, "FP32", -1, 2) for name in "xy"]
    x, y = np.float32([[1, 2], [3, 4]]), np.float32([[4, 3], [2, np.inf]])

    def infer(x: Any, y: Any, headers: Any = mine, **more: Any) -> Any:
        given = [of.InferInput(name, [*one.shape], of_dtype(one)) for name, one in (("x", x), ("y", y))]
        for one, value in zip(given, (x, y), strict=True):
            one.set_data_from_numpy(value)
        return client.infer("pairs", given, headers=headers, **more)

    def garbage(method: str) -> Any:
        call = client._channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        return call(b"\xff\xff garbage", metadata=[("authorization", "Bearer secret")])

    result = infer(x, y, request_id="7")
    assert result.get_response().id == "7"
    np.testing.assert_array_equal(result.as_numpy("sum"), x + y)
    np.testing.assert_array_equal(result.as_numpy("larger"), x > y)
    only = infer(x, y, outputs=[of.InferRequestedOutput("larger")])
    assert only.as_numpy("sum") is None
    for says, bad in (
        ("must have the shape", lambda: infer(x[:, :1], y)),
        ("must be FP32, got FP64", lambda: infer(x.astype(np.float64), y)),
        ("NOT_FOUND", lambda: client.infer("none", [], headers=mine)),
        ("UNAUTHENTICATED", lambda: infer(x, y, None)),
        ("INVALID_ARGUMENT", lambda: garbage("ModelInfer")),
        ("INVALID_ARGUMENT", lambda: garbage("ModelMetadata")),
    ):
        with pytest.raises(Exception, match=says):
            bad()
    np.testing.assert_array_equal(infer(x, y).as_numpy("sum"), x + y)
    text = running.ask("/metrics", **mine)[1]
    assert 'hybridflow_requests_total{model="pairs",version="1",status="200"} 3' in text


def of_dtype(array: Any) -> str:
    return {"float32": "FP32", "float64": "FP64"}[str(array.dtype)]


def test_contents_that_are_typed_and_raw_ones_that_are_too_few():
    pytest.importorskip("google.protobuf")
    request = messages()["ModelInferRequest"](model_name="m")
    one = request.inputs.add(name="x", datatype="INT64", shape=[20_000])
    one.contents.int64_contents.extend(range(20_000))
    other = request.inputs.add(name="y", datatype="INT8", shape=[2])
    other.contents.int_contents.extend([1, 2])
    head, binary = as_v2(request)
    assert json.loads(head)["inputs"] == [
        {"name": "x", "datatype": "INT64", "shape": [20_000], "parameters": {"binary_data_size": 160_000}},
        {"name": "y", "datatype": "INT8", "shape": [2], "data": [1, 2]},
    ]
    assert binary == np.arange(20_000).tobytes()
    request.raw_input_contents.extend([b"1", b"2", b"3"])
    with pytest.raises(Refused, match="3 tensors for 2 inputs"):
        as_v2(request)
    del request.raw_input_contents[:]
    one.contents.bytes_contents.append(b"text")
    with pytest.raises(Refused, match="must be numbers"):
        as_v2(request)


# -- a request against all --------------------------------------------------------------------------------------------


def outer(x: Any) -> Any:
    return hf.reshape(x, (-1, 1)) * hf.reshape(x, (1, -1))


def spin(x: Any) -> Any:
    """As many steps as the first value says, which no compiler makes fewer."""
    count, i, value = x[0].astype("int32"), hf.zeros((), dtype="int32"), hf.zeros((), dtype="uint32")
    while i < count:
        i = i + 1
        value = value * 1664525 + 1013904223
        value = value ^ (value >> 7)
    return x + value.astype("float32")


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of models that take memory, operations, and time; and of one that takes little of all."""
    pytest.importorskip("uvicorn")
    folder = tmp_path_factory.mktemp("several")
    hf.export.save(folder / "outer.hf", outer, hf.TensorSpec([None]))
    hf.export.save(folder / "spin.hf", spin, hf.TensorSpec([4]))
    hf.export.save(folder / "square.hf", lambda x: hf.sum(x @ x), hf.TensorSpec(["n", "n"]))
    saved(folder / "m.hf", 2.0)
    limits = ("--max-memory", "64MiB", "--max-flops", "1e6", "--timeout", "2s")
    running = Running(folder, *limits, "--allow-host", "Me.Org")
    yield running
    assert running.end() == 0


@pytest.mark.parametrize(
    ("model", "value", "says"),
    [
        ("outer", [1.0] * 60_000, r"a call takes about 14400000000 bytes at once, more than 67108864 .*--max-memory"),
        ("square", np.ones((100, 100)).tolist(), r"operations, more than 1000000 .*--max-flops"),
    ],
)
def test_a_request_beyond_the_limits_is_refused_before_it_runs(several: Running, model: str, value: Any, says: str):
    status, answer = several.ask(f"/v1/models/{model}:predict", {"inputs": value})
    assert status == 413
    assert re.search(says, answer["error"])
    assert several.ask(f"/v1/models/{model}:predict", {"inputs": [1.0] if model == "outer" else [[1.0]]})[0] == 200


def test_no_model_waits_for_another(several: Running):
    answers: list[tuple[int, Any]] = []
    path = "/v1/models/spin:predict"
    slow = threading.Thread(target=lambda: answers.append(several.ask(path, {"inputs": [2e9] * 4}, timeout=60)))
    slow.start()
    while "hybridflow_queue 0\n" in several.ask("/metrics")[1]:
        time.sleep(0.01)
    for _ in range(5):
        assert several.ask(PATH, ROW)[0] == 200
        assert not answers
    slow.join()
    assert answers[0][0] == 504
    assert several.ask(PATH, ROW)[0] == 200


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has a priority of its own on Linux alone")
def test_computing_leaves_the_cores_to_what_answers(several: Running):
    for worker in several.workers():
        nice = {one.name: int((one / "stat").read_text().rpartition(")")[2].split()[16])
                for one in Path(f"/proc/{worker}/task").iterdir()}
        computing = {one for one in nice if Path(f"/proc/{worker}/task/{one}/comm").read_text().startswith("tf_XLA")}
        assert computing
        assert {nice[one] for one in computing} == {nice[str(worker)] + LOWER_PRIORITY}


def test_a_large_answer_is_written_in_pieces(several: Running):
    rng = np.random.default_rng(0)
    x = rng.normal(size=300).astype(np.float32)
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [300], "data": x.tolist()}]}
    status, answer = several.ask("/v2/models/outer/infer", body)
    assert status == 200
    (output,) = answer["outputs"]
    assert output["shape"] == [300, 300]
    np.testing.assert_array_equal(np.float32(output["data"]), (x[:, None] * x).reshape(-1))
    answer = several.ask("/v1/models/outer:predict", {"inputs": x.tolist()})[1]
    np.testing.assert_array_equal(np.float32(answer["outputs"]), x[:, None] * x)


def seconds_of(process: int) -> float:
    """Return the processor time of a process; 0 if it ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def below(process: int) -> list[int]:
    """Return the processes that a process started, and those that they started."""
    own = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, check=False).stdout.split()
    return [one for child in map(int, own) for one in (child, *below(child))]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_large_texts_are_read_and_written_in_processes_of_their_own(tmp_path: Path):
    """Whatever else is served waits for Python's lock, which reading and writing text takes."""
    pytest.importorskip("uvicorn")
    running = Running(saved(tmp_path / "m.hf", 2.0))
    (worker,) = running.workers()
    x = np.random.default_rng(0).normal(size=(20_000, 12)).astype(np.float32)
    body = json.dumps({"inputs": x.tolist()}).encode()
    assert running.ask(PATH, body)[0] == 200
    before = seconds_of(worker)
    for _ in range(5):
        np.testing.assert_array_equal(np.float32(running.ask(PATH, body)[1]["outputs"]), x * 2)
    assert seconds_of(worker) - before < sum(map(seconds_of, below(worker))) / 2
    for process in below(worker):
        os.kill(process, signal.SIGKILL)
    assert running.ask(PATH, ROW)[0] == 200
    assert running.ask(PATH, body)[0] in (200, 503)
    np.testing.assert_array_equal(np.float32(running.ask(PATH, body)[1]["outputs"]), x * 2)
    started = below(running.process.pid)
    assert running.end() == 0
    assert not any(map(seconds_of, started))


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:9", 200), ("me.org", 200), ("evil.org", 403),
     ("evil.org:8000", 403), ("127.0.0.1.evil.org", 403)],
)
def test_a_request_for_another_host_is_refused(several: Running, host: str, status: int):
    assert several.ask("/v2/health/ready", Host=host)[0] == status


def test_the_page_has_a_policy(several: Running):
    with urllib.request.urlopen(f"http://127.0.0.1:{several.port}/") as response:
        policy = response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        text = response.read().decode()
    for tag in ("style", "script"):
        inside = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "style=" not in text


def test_numbers_are_there_from_the_start(tmp_path: Path):
    pytest.importorskip("uvicorn")
    running = Running(saved(tmp_path / "m.hf", 2.0))
    text = running.ask("/metrics")[1]
    assert running.end() == 0
    for line in ('hybridflow_requests_total{model="m",version="1",status="200"} 0',
                 'hybridflow_request_seconds_count{model="m",version="1"} 0', "hybridflow_queue 0",
                 'hybridflow_refused_total{status="404"} 0', "hybridflow_batch_rows_count 0"):
        assert line in text


@pytest.mark.parametrize(
    ("option", "says"),
    [("--max-body=4 MX", "no size, such as 64MiB"), ("--max-memory=0", "no size"), ("--max-flops=many", "no number"),
     ("--max-batch=x", "not a whole number")],
)
def test_limits_that_are_none(option: str, says: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["serve", ".", option])
    assert says in capsys.readouterr().err


def test_a_batch_stays_within_the_limits(tmp_path: Path):
    hf.export.save(tmp_path / "m.hf", lambda x: hf.sum(hf.sin(x), axis=1), hf.TensorSpec([None, None]))
    limits = hf.export.Limits(memory=3 * 1000 * 8)  # three rows, at most
    rows: list[int] = []
    batcher = Batcher(8, 0.2, 100, rows.append)
    servable = Servable(hf.export.load(tmp_path / "m.hf", limits=limits).predict, 8)
    hold = threading.Event()
    threading.Thread(target=batcher.compute, args=(lambda: hold.wait(30) and None, "")).start()
    x = np.random.default_rng(0).normal(size=(6, 1, 1000)).astype(np.float32)
    futures = [batcher.submit(servable, {"x": one}) for one in x]
    hold.set()
    for one, future in zip(x, futures, strict=True):
        np.testing.assert_allclose(next(iter(future.result(60).values())), np.sin(one).sum(axis=1), rtol=1e-5)
    with pytest.raises(Refused, match="more than 24000") as refused:
        servable.require_sizes({"x": np.zeros((8, 1000), np.float32)})
    assert refused.value.status == 413
    assert rows == [1] * 6
    batcher.stop()
