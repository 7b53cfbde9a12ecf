"""A server process for tests."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


class Running:
    """A server process.

    Args:
        arguments: those of the command.
        log: a file for the access log; None for no log.
        trust: the certificate of a server that speaks TLS.
    """

    def __init__(self, *arguments: Any, log: Path | None = None, trust: Path | None = None) -> None:
        command = [sys.executable, "-m", "hybridflow", "serve", *map(str, arguments), "--port", "0"]
        with open(log or os.devnull, "w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                [*command, *([] if log else ["--quiet"])], stdout=subprocess.PIPE, text=True,
                stderr=errors if log else None, env={**os.environ, "COLUMNS": "99"},
            )
        assert self.process.stdout is not None
        self.scheme = "http" if trust is None else "https"
        self.context = None if trust is None else ssl.create_default_context(cafile=trust)
        self.lines: list[str] = []
        self.first: list[str] = []
        while "http" not in (self.first or [""])[-1]:
            self.first.append(self.process.stdout.readline())
            assert self.first[-1], "the server ended"
        self.port = int(self.first[-1].rsplit(":", 1)[1])
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout or ()), daemon=True)
        self.reader.start()
        assert self.ask("/v2/health/ready", timeout=60)[0] == 200

    def ask(self, path: str, body: Any = None, timeout: float = 20, **headers: str) -> tuple[int, Any]:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.scheme}://127.0.0.1:{self.port}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout, context=self.context) as response:
                raw, status = response.read(), response.status
        except urllib.error.HTTPError as error:
            with error:
                raw, status = error.read(), error.code
        try:
            return status, json.loads(raw)
        except ValueError:
            return status, raw.decode()

    def workers(self) -> list[int]:
        return [int(one) for one in subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True,
                                                   text=True, check=False).stdout.split()]

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(30)  # a busy machine takes its time
        self.reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status
