"""The coordinator of a run: the board and jax's service, in a process that no failure of a member ends.

`hybridflow launch` runs it itself; elsewhere process 0 starts it as ``python -m hybridflow.core.processes.host``.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

from hybridflow.backend.jax_shim import serve_processes
from hybridflow.core.processes.board import Board
from hybridflow.core.processes.environment import TOKEN, Place
from hybridflow.core.processes.wire import split_address


class Coordinator:
    """The board and jax's service.

    Args:
        address: where the board listens; port 0 takes a free one.
        count: the number of processes.
        token: what they must say first.

    Attributes:
        board: the board.
    """

    def __init__(self, address: str, count: int, token: str = "") -> None:
        host = split_address(address)[0]
        port = free_port()
        self.board = Board(address, count, token, f"{host}:{port}")
        self._service = serve_processes(f"{host}:{port}" if is_local(host) else f"[::]:{port}", count)

    def close(self) -> None:
        """End both."""
        self.board.close()
        self._service.shutdown()


def is_local(host: str) -> bool:
    """Whether a host's name is this machine's own."""
    return host in ("127.0.0.1", "::1", "localhost")


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def start_beside(place: Place) -> None:
    """Start the coordinator of a run in a process of its own, beside process 0."""
    command = [sys.executable, "-m", "hybridflow.core.processes.host", place.coordinator, str(place.count)]
    subprocess.Popen(
        command, stdin=subprocess.DEVNULL, env={**os.environ, TOKEN: place.token, "JAX_PLATFORMS": "cpu"},
        start_new_session=True,
    )


def main() -> None:
    """Run the coordinator until all processes have left or are lost."""
    address, count = sys.argv[1:]
    coordinator = Coordinator(address, int(count), os.environ.get(TOKEN, ""))
    threading.Thread(target=coordinator.board.wait_for_first, args=(os.getppid(),), daemon=True).start()
    coordinator.board.wait()
    os._exit(0)  # the service would wait for members that are lost


if __name__ == "__main__":
    main()
