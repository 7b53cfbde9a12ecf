"""The three meanings of `F` in a gradient rule: NumPy kernels, jax lowerings, or the public ops.

A rule ``vjp(F, g, y, *xs, **attrs)`` calls ``F.name(...)`` with canonical attributes (axes as tuples of
non-negative integers, dtypes as dtypes) and uses Python operators between values. So one rule runs on bare
arrays at NumPy speed, inside one jitted function, or through `bind`, where it is traced or recorded itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridflow.core.dispatch import as_arrays, run_raw
from hybridflow.core.op import REGISTRY, No, Op


class _Namespace:
    """A namespace of ops by name; each name is looked up in the registry once."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        op = REGISTRY.get(name)
        if op is None:
            raise AttributeError(f"a gradient rule asked for the unknown op {name!r}")
        function = self._resolve(op)
        setattr(self, name, function)
        return function

    def _resolve(self, op: Op) -> Callable[..., Any]:
        raise NotImplementedError


class HostNamespace(_Namespace):
    """NumPy kernels on bare arrays; an op without a kernel runs its jitted lowering."""

    def _resolve(self, op: Op) -> Callable[..., Any]:
        def lowered(*xs: Any, **attrs: Any) -> Any:
            return run_raw(op, [as_arrays(x) for x in xs], attrs)

        run = lowered if isinstance(op.kernel, No) else op.kernel
        return _without_residuals(op, run) if op.saves.hidden else run


class XlaNamespace(_Namespace):
    """jax lowerings, for a rule that is jitted as a whole."""

    def _resolve(self, op: Op) -> Callable[..., Any]:
        return _without_residuals(op, op.lower) if op.saves.hidden else op.lower


class PublicNamespace(_Namespace):
    """The public ops, for rules that are traced or recorded themselves."""

    def _resolve(self, op: Op) -> Callable[..., Any]:
        assert op.public is not None, f"{op.name} has no public function, so no rule may call it"
        return op.public


def _without_residuals(op: Op, run: Callable[..., Any]) -> Callable[..., Any]:
    def visible_only(*xs: Any, **attrs: Any) -> Any:
        outputs = run(*xs, residuals=False, **attrs)
        return outputs[0] if isinstance(outputs, tuple) and len(outputs) == 1 else outputs

    return visible_only


HOST = HostNamespace()
XLA = XlaNamespace()
PUBLIC = PublicNamespace()
