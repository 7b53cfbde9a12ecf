"""The modules of the `tensorboard` package, an optional dependency."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hybridflow.core.errors import MissingPackageError


def tensorboard_module(name: str, asked_by: str) -> Any:
    """Return a module of the package.

    Args:
        name: its name without ``tensorboard.``; a name without dots, such as ``event``, is a module of protobuf
            messages.
        asked_by: the caller, for the message.

    Raises:
        MissingPackageError: the package is not installed.
    """
    full = f"tensorboard.{name}" if "." in name else f"tensorboard.compat.proto.{name}_pb2"
    try:
        return import_module(full)
    except ImportError:
        raise MissingPackageError(f"{asked_by}: needs tensorboard, which is not installed",
                                  hint="Run pip install 'hybridflow[tensorboard]'.") from None
