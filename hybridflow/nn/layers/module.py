"""`hf.nn.Module`: what holds parameters and is called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self, cast

from hybridflow.core.attached import attached
from hybridflow.core.functions import Whole
from hybridflow.core.keywords import take_foreign_keywords
from hybridflow.core.module_calls import ACTIVE, called
from hybridflow.core.variable import Variable
from hybridflow.nn import show, state, tree

_LAYERS = "hybridflow.nn."
"""Where the classes are whose options have names in other packages too."""


class Module(Whole):
    """A part of a model, with parameters and other modules as attributes.

    A subclass defines ``forward`` (or ``__call__``). Its attributes are ordinary ones. Variables are parameters, also
    inside other modules, lists, tuples and dicts. Their paths, such as ``blocks.0.mlp.weight``, are their names
    everywhere. Calling ``super().__init__()`` is optional.

    A module is a pytree of its parameters, so ``hf.grad(loss)(model)`` is a module of gradients.

    Example:
        >>> import hybridflow as hf
        >>> class Net(hf.nn.Module):
        ...     def __init__(self):
        ...         self.hidden = hf.nn.Linear(4, 8)
        ...         self.out = hf.nn.Linear(2)  # its other size is that of the first call
        ...
        ...     def forward(self, x):
        ...         return self.out(hf.nn.relu(self.hidden(x)))
        >>> net = Net()
        >>> net(hf.ones((3, 4))).shape
        (3, 2)
        >>> {path: one.shape for path, one in net.named_parameters().items()}
        {'hidden.weight': (8, 4), 'hidden.bias': (8,), 'out.weight': (2, 8), 'out.bias': (2,)}
        >>> gradients = hf.grad(lambda net: hf.sum(net(hf.ones((3, 4)))))(net)
        >>> gradients.out.bias
        Tensor([3., 3.], dtype=float32)
    """

    __slots__ = ("__dict__", "__weakref__", "_copied", "_forward", "_path")
    # `_forward` is what `hf.train` compiled of it, which is freed with it.

    training: bool = True
    """Whether the module is in training mode: see `train` and `eval`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls).get("__call__")
        if own is not None:
            cast(Any, cls).__call__ = _entered(own)
        if cls.__module__.startswith(_LAYERS):
            take_foreign_keywords(cls)
        tree.register(cls)
        Whole.exist = True

    @property
    def is_whole(self) -> bool:
        """Whether a compiled function gets the module as it is: not if it is made of another one's structure."""
        copied: tree.Copied | None = getattr(self, "_copied", None)
        return copied is None or copied.whole

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the result; subclasses write it."""
        raise NotImplementedError(f"{type(self).__name__}: forward is not written")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `forward`."""
        tree.prepare(self)
        if ACTIVE:
            return called(self, self.forward, args, kwargs)
        return self.forward(*args, **kwargs)

    # -- what is in it --------------------------------------------------------------------------------------------

    def parameters(self) -> list[Variable]:
        """Return the parameters, frozen ones too, each once."""
        return state.parameters(self)

    def named_parameters(self) -> dict[str, Variable]:
        """Return the parameters, frozen ones too, each once, by their paths.

        The result is a dict: write ``for path, one in model.named_parameters().items()`` where torch gives pairs.
        """
        return state.named_parameters(self)

    def buffers(self) -> list[Variable]:
        """Return the buffers: what belongs to the module's state and is not learned."""
        return [*state.named_buffers(self).values()]

    def named_buffers(self) -> dict[str, Variable]:
        """Return the buffers by their paths, as a dict; its ``.items()`` are pairs."""
        return state.named_buffers(self)

    def named_modules(self) -> dict[str, Module]:
        """Return the modules in it, each once, by their paths; the module itself is ``""``.

        The result is a dict; its ``.items()`` are pairs.
        """
        return state.named_modules(self)

    def register_buffer(self, name: str, value: Any) -> Variable:
        """Set an attribute to a Variable that is saved with the module but not trained.

        Args:
            name: the attribute.
            value: its initial value.

        Returns:
            The Variable.
        """
        return state.register_buffer(self, name, value)

    # -- modes ----------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode for the module and all modules in it, and return it.

        Raises:
            TraceError: inside of a compiled function.
        """
        state.set_mode(self, mode)
        return self

    def eval(self) -> Self:
        """Put the module and those in it out of training mode; see `train`."""
        state.set_mode(self, False)
        return self

    def freeze(self, pattern: str = "*") -> Self:
        """Freeze parameters: tapes do not watch them, and optimizers skip them.

        Args:
            pattern: a pattern of paths for `fnmatch`, such as ``"encoder.*"``.

        Raises:
            ArgumentError: no path matches.
        """
        state.set_trainable(self, pattern, False)
        return self

    def unfreeze(self, pattern: str = "*") -> Self:
        """Let parameters be learned again; see `freeze`."""
        state.set_trainable(self, pattern, True)
        return self

    # -- values ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return a snapshot of the parameters and buffers: NumPy arrays by path."""
        return state.state_dict(self)

    def load_state_dict(self, values: Any, strict: bool = True) -> None:
        """Assign parameters and buffers. If something does not fit, nothing is assigned.

        Args:
            values: arrays by path.
            strict: whether missing and unknown paths are errors.

        Raises:
            ArgumentError: paths or shapes that do not fit; all are named.
        """
        state.load_state_dict(self, values, strict)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return state.deep_copy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise state.not_pickled(self)

    def extra_repr(self) -> str:
        """Return what `repr` shows of the module beside the modules in it."""
        return ""

    def __repr__(self) -> str:
        return show.tree_text(self)


def _entered(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a class's own ``__call__``, before which the module is prepared as by `Module.__call__`."""

    @functools.wraps(own)
    def entered(self: Any, *args: Any, **kwargs: Any) -> Any:
        tree.prepare(self)
        if ACTIVE:
            return called(self, own, (self, *args), kwargs)
        return own(self, *args, **kwargs)

    return entered


attached("name_class")(Module, "model")
tree.register(Module)
