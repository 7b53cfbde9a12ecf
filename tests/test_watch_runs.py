"""`hybridflow watch`: what it reads of runs, who may ask it, and the page in a browser."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsers import browser, opened

import hybridflow as hf
from hybridflow.cli import main
from hybridflow.core.activity import LISTENERS
from hybridflow.core.errors import FileError
from hybridflow.train.watch import serve
from hybridflow.train.watch.server import POINTS, Load, Runs, Server, page_of


def log(folder: Path, *lines: Any, mode: str = "a") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.jsonl").open(mode) as file:
        file.writelines(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)


def say(folder: Path, **line: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "activity.jsonl").open("a") as file:
        file.write(json.dumps({"time": time.time(), "pid": os.getpid(), "step": 0, **line}) + "\n")


def point(step: int, **values: float) -> dict[str, Any]:
    return {"step": step, "epoch": 0, "seconds": step / 10, **values}


def test_lines_are_read_as_they_come(tmp_path: Path):
    runs = Runs([tmp_path])
    assert runs.shown()["runs"] == []
    log(tmp_path / "a", point(1, loss=2.0), '{"step": 2, "loss": 1.')
    (shown,) = runs.shown()["runs"]
    assert (shown["name"], shown["state"], shown["curves"]) == ("a", "unknown", {"loss": [(1, 2.0)]})
    log(tmp_path / "a", '5}\n', point(3, loss=float("nan"), accuracy=0.5))
    log(tmp_path / "deep" / "b", point(1, loss=9.0))
    one, other = runs.shown()["runs"]
    assert one["curves"] == {"loss": [(1, 2.0), (2, 1.5), (3, None)], "accuracy": [(3, 0.5)]}
    assert (one["step"], one["epoch"], one["seconds"]) == (3, 0, 0.3)
    assert other["name"] == "deep/b"
    log(tmp_path / "a", point(1, loss=7.0), mode="w")  # a resumed run writes its log anew
    assert runs.shown()["runs"][0]["curves"] == {"loss": [(1, 7.0)]}
    log(tmp_path / "a", "[1, 2]\n", "nonsense\n", {"loss": 3.0}, point(2, loss=8.0))
    assert runs.shown()["runs"][0]["curves"] == {"loss": [(1, 7.0), (2, 8.0)]}


def test_long_curves_are_thinned_and_keep_their_ends(tmp_path: Path):
    count = 10 * POINTS + 3
    log(tmp_path, *[point(step, loss=float(step), bad=float("nan") if step == 50 else 1.0) for step in range(count)])
    curves = Runs([tmp_path]).shown()["runs"][0]["curves"]
    assert len(curves["loss"]) <= POINTS
    assert curves["loss"][-1] == (count - 1, float(count - 1))
    assert all(abs(step - value) <= 10 for step, value in curves["loss"])
    assert [value for _, value in curves["bad"]].count(None) == 1


def test_what_a_run_is_doing(tmp_path: Path):
    runs = Runs([tmp_path])
    for state in ("running", "tracing", "compiling"):
        say(tmp_path, state=state, step=3, steps=10, function="step")
        (shown,) = runs.shown()["runs"]
        assert (shown["state"], shown["step"], shown["steps"], shown["function"]) == (state, 3, 10, "step")
        assert shown["process"]["memory"] is None or shown["process"]["memory"] > 1 << 20
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    say(tmp_path, state="running", pid=child.pid)
    assert runs.shown()["runs"][0]["state"] == "gone"
    say(tmp_path, state="finished", pid=child.pid)
    assert runs.shown()["runs"][0]["state"] == "finished"


def test_a_run_tells_what_it_is_doing(tmp_path: Path):
    w = hf.Variable(0.0, name="w")

    @hf.compile
    def step(x: Any) -> Any:
        w.assign_add(x)
        return w * 2.0

    run = hf.train.Run(tmp_path, data=[hf.asarray(1.0)] * 3, variables=[w], progress=False)
    for x in run.steps(6):
        run.log(loss=step(x))
    lines = [json.loads(line) for line in (tmp_path / "activity.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(line["state"], line["step"]) for line in lines] == [
        ("running", 0), ("tracing", 1), ("running", 1), ("compiling", 1), ("running", 1), ("finished", 6),
    ]
    assert {line.get("function") for line in lines} == {None, "step"}
    assert {line["steps"] for line in lines} == {6}
    again = hf.train.Run(tmp_path, data=[hf.asarray(1.0)] * 3, variables=[w], progress=False)
    with pytest.raises(ZeroDivisionError), again.loop(9):
        1 / 0  # noqa: B018
    last = (tmp_path / "activity.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    assert json.loads(last)["state"] == "failed: ZeroDivisionError"
    assert not LISTENERS
    assert Runs([tmp_path]).shown()["runs"][0]["step"] == 6


def test_the_log_is_written_during_short_epochs(tmp_path: Path):
    run = hf.train.Run(tmp_path, data=[1, 2], progress=False)
    for _ in run.steps(8):
        run.log(loss=1.0)
        time.sleep(0.25)
        if run.step == 7:
            assert len((tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()) >= 2


def test_the_load_of_the_machine(tmp_path: Path):
    (tmp_path / "stat").write_text("cpu  100 0 50 800 50 0 0 0 0 0\n")
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\n")
    load = Load(tmp_path)
    (tmp_path / "stat").write_text("cpu  160 0 60 820 60 0 0 0 0 0\n")
    found = load.now()
    assert found == {"cores": os.cpu_count(), "busy": 0.7, "memory": 1024000, "used": 614400}
    assert load.now()["busy"] is None  # no time has passed
    assert Load(tmp_path / "nothing").now()["memory"] is None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    for name, scale in (("first", 1.0), ("second <b>&", 2.0)):
        log(tmp_path / name, *[point(step, loss=scale / (step + 1), rate=1e-4) for step in range(60)])
    say(tmp_path / "first", state="compiling", function="train_step", step=59, steps=120)
    say(tmp_path / "second <b>&", state="finished", step=59, steps=60)
    with Server([tmp_path], 0) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def asked(server: Server, path: str, host: str | None = None) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    connection.request("GET", path, headers={} if host is None else {"host": host})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def test_who_may_ask_for_what(server: Server):
    assert server.server_address[0] == "127.0.0.1"
    status, headers, body = asked(server, "/")
    assert status == 200
    nonce = re.search(r"'nonce-([\w-]+)'", headers["content-security-policy"])
    assert nonce is not None
    assert f'<script nonce="{nonce[1]}">' in body.decode()
    assert headers["content-security-policy"].startswith("default-src 'none'")
    status, headers, body = asked(server, "/runs?now")
    assert (status, headers["cache-control"]) == (200, "no-store")
    assert [run["name"] for run in json.loads(body)["runs"]] == ["first", "second <b>&"]
    assert asked(server, "/runs", host=f"localhost:{server.server_address[1]}")[0] == 200
    assert asked(server, "/runs", host="example.com")[0] == 403
    assert asked(server, "/../../etc/passwd")[0] == 404


def test_the_page_needs_nothing_from_elsewhere():
    page = page_of("x").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//[\w-]+\.\w|@import|url\(", page)


@browser
@pytest.mark.browser
def test_the_page_in_a_browser(server: Server, tmp_path: Path):
    found = opened(server.url, tmp_path / "chromium", "--virtual-time-budget=6000")
    assert '<span class="state compiling">compiling</span> train_step for ' in found
    assert "step 59 of 120" in found
    assert "second &lt;b&gt;&amp;" in found
    assert re.search(r'<div style="width: 49\.\d+%;"></div>', found)
    assert [*re.findall(r'<svg[^>]*aria-label="(\w+)"', found)] == ["loss", "rate"]
    assert len(re.findall(r'<path class="curve"[^>]* d="M[\d. ]+L', found)) == 4
    assert "0.03333 at 59" in found
    assert re.search(r"processors \d+ % of \d+ busy", found)
    assert '<p id="lost" role="alert" hidden="">' in found
    assert re.search(r'<p id="none"[^>]* hidden="">', found)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["watch", str(tmp_path / "missing")]) == 2
    assert "watch: there is no directory" in capsys.readouterr().err
    command = [sys.executable, "-m", "hybridflow", "watch", str(tmp_path), "--port", "0"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # else ignored in the background
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    signal.signal(signal.SIGINT, before)
    assert child.stdout is not None
    line = child.stdout.readline() + child.stdout.readline()
    port = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
    assert port is not None
    connection = http.client.HTTPConnection("127.0.0.1", int(port[1]), timeout=10)
    connection.request("GET", "/runs")
    assert json.loads(connection.getresponse().read())["runs"] == []
    with pytest.raises(FileError, match=rf"port {port[1]} cannot be used(?s:.)*Choose another"):
        serve([tmp_path], int(port[1]), print)
    connection.close()
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=30) == 0
    child.stdout.close()
