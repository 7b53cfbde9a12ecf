"""`hf.nn.Module`: the base class of layers and models."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar, cast

from hybridflow.core.attached import attached
from hybridflow.core.errors import ArgumentTypeError
from hybridflow.core.functions import Whole
from hybridflow.core.keywords import take_foreign_keywords, with_foreign_keywords
from hybridflow.core.module_calls import ACTIVE
from hybridflow.core.reprs import settings_of
from hybridflow.core.settings import SETTINGS
from hybridflow.core.variable import Variable
from hybridflow.nn import state, tree
from hybridflow.nn.observed import called
from hybridflow.nn.tree import holds

if TYPE_CHECKING:
    from hybridflow.nn.watching import Watch


P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
_LAYERS = "hybridflow.nn."
"""The package of the layers whose arguments are compared with other packages' names for them."""
_IN_ORDER = (
    ".parameters() has what is in it, of a module of gradients too: zip(net.parameters(), gradients.parameters()). "
    "By path: .named_parameters() and .named_modules()."
)


class Forward(Protocol[P, R_co]):
    """What type checkers need to know of a module, so that a call has the signature of its `forward`."""

    recomputed: Any

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Compute the result."""
        ...


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

    __slots__ = ("__dict__", "__weakref__", "_copied", "_forward", "_forward_on", "_path")
    # `_forward` and `_forward_on` are what `hf.train` compiled of it, which is freed with it.

    training: bool = True
    """Whether the module is in training mode: see `train` and `eval`."""
    recomputed: Any = None
    """The policy of the checkpoint that each call of the module is, or None: see `recompute`."""

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
        """Whether this is a module of its own, and not a copy with other leaves that shares a module's structure."""
        copied: tree.Copied | None = getattr(self, "_copied", None)
        return copied is None or copied.whole

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the result; subclasses write it."""
        raise NotImplementedError(f"{type(self).__name__}: forward is not written")

    def __call__(self: Forward[P, R_co], *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call `forward`."""
        tree.prepare(self)
        if self.recomputed is not None or SETTINGS.observers or ACTIVE:
            return called(self, self.forward, args, kwargs)
        return self.forward(*args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        """Say that a module is no sequence of its parameters: Python asks for items to iterate, too."""
        raise ArgumentTypeError(f"{type(self).__name__}: a module is no sequence", hint=_IN_ORDER)

    def __mul__(self, other: Any) -> Any:
        raise ArgumentTypeError(f"{type(self).__name__}: a module is no number", hint=_IN_ORDER)

    __rmul__ = __mul__

    # -- what is in it --------------------------------------------------------------------------------------------

    @with_foreign_keywords
    def parameters(self) -> list[Variable]:
        """Return the parameters, frozen ones too, each once."""
        return state.parameters(self)

    @with_foreign_keywords
    def named_parameters(self) -> dict[str, Variable]:
        """Return the parameters, frozen ones too, each once, by their paths.

        The result is a dict: write ``for path, one in model.named_parameters().items()`` where torch gives pairs.
        """
        return state.named_parameters(self)

    def buffers(self) -> list[Variable]:
        """Return the buffers: the Variables that belong to the module's state and are not trained."""
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
        """Set evaluation mode for the module and all modules in it; see `train`."""
        state.set_mode(self, False)
        return self

    def freeze(self, pattern: str = "*") -> Self:
        """Freeze parameters: tapes do not watch them, and optimizers that are made from now on leave them out.

        An optimizer keeps the parameters that it was made with, so make it after this; its updates raise an error else.

        Args:
            pattern: a pattern of paths for `fnmatch`, such as ``"encoder.*"``.

        Raises:
            ArgumentError: no path matches.
        """
        state.set_trainable(self, pattern, False)
        return self

    def unfreeze(self, pattern: str = "*") -> Self:
        """Make frozen parameters trainable again, for optimizers that are made from now on; see `freeze`."""
        state.set_trainable(self, pattern, True)
        return self

    def recompute(self, pattern: str, *, policy: Any = "nothing") -> Self:
        """Compute modules again for their gradients, so that what they compute inside need not be kept.

        From now on, each call of them is an `hf.checkpoint`. Results and gradients are the same; compiled functions are
        traced again.

        Args:
            pattern: a pattern of the modules' paths for `fnmatch`, such as ``"blocks.*"``. Of modules inside of each
                other, the outermost ones that match are meant.
            policy: what is kept all the same: see `hf.checkpoint`. With ``"everything"``, nothing is computed again.

        Raises:
            ArgumentError: no path matches, or there is no policy of that name.
            TraceError: inside of a compiled function.

        Example:
            >>> import hybridflow as hf
            >>> blocks = [hf.nn.Sequential(hf.nn.Linear(4, 64), hf.tanh, hf.nn.Linear(64, 4)) for _ in range(2)]
            >>> model = hf.nn.Sequential(*blocks)
            >>> gradients = hf.grad(lambda x: hf.sum(model(x)))
            >>> kept = sum(one.bytes for one in hf.cost(gradients, hf.ones((8, 4))).memory.activations)
            >>> model = model.recompute("[0-9]*")
            >>> again = sum(one.bytes for one in hf.cost(gradients, hf.ones((8, 4))).memory.activations)
            >>> kept, again
            (4096, 128)
        """
        state.set_recomputed(self, pattern, policy)
        return self

    def watch(self, pattern: str = "*", *, history: int = 1000) -> Watch:
        """Keep statistics of what modules return, and of its gradients, from now until the result is closed.

        They are kept in Variables, by eager and compiled calls alike: each call of a module adds its result's mean,
        standard deviation, share of zeros and largest absolute value; each gradient of a loss that a tape, `hf.grad` or
        `.backward()` computes adds the norm of its gradient with respect to the result. Of a result with several
        tensors, the first of floats counts. Compiled functions are traced again for a watch, and a failed call adds
        nothing. Gradients are seen where the tape and the module are in the same function: not those of a compiled
        call under a tape outside of it, of which a `WatchWarning` tells, nor those in loop bodies and checkpoints.

        Args:
            pattern: a pattern of paths for `fnmatch`, such as ``"blocks.*"``; functions in `Sequential` have paths too.
            history: how many calls of each module are remembered.

        Returns:
            The statistics, to print, to ask and to write for TensorBoard; close it, or use it in a ``with`` block.

        Raises:
            ArgumentError: no path matches, or `history` is less than 1.
            TraceError: inside of a compiled function.

        Example:
            >>> import hybridflow as hf
            >>> model = hf.nn.Sequential(hf.nn.Linear(2, 4), hf.nn.relu, hf.nn.Linear(4, 1))
            >>> with model.watch() as seen:
            ...     for _ in range(3):
            ...         with hf.GradientTape() as tape:
            ...             loss = hf.mean(model(hf.ones((5, 2))) ** 2)
            ...         _ = tape.gradient(loss, model)
            >>> [(row.path, row.calls) for row in seen.rows()]
            [('', 3), ('0', 3), ('1', 3), ('2', 3)]
            >>> seen.history("1")["gradient_norm"].shape
            (3,)
        """
        from hybridflow.nn.watching import Watch  # few models are watched

        return Watch(self, pattern, history)

    # -- values ---------------------------------------------------------------------------------------------------

    @with_foreign_keywords
    def state_dict(self) -> dict[str, Any]:
        """Return a snapshot of the parameters and buffers: NumPy arrays by path."""
        return state.state_dict(self)

    @with_foreign_keywords
    def load_state_dict(self, values: Any, strict: bool = True, *, mapping: Any = None) -> None:
        """Assign parameters and buffers. If something does not fit, nothing is assigned.

        Args:
            values: arrays by path.
            strict: whether missing and unknown paths are errors.
            mapping: how to rename the paths, as in `hf.load`: ``"torch"`` takes the ``state_dict`` of a PyTorch model
                with the same layers.

        Raises:
            ArgumentError: paths or shapes that do not fit; all are named.

        Example:
            >>> import hybridflow as hf
            >>> net = hf.nn.Linear(2, 1)
            >>> net.load_state_dict({"fc.weight": [[1.0, 2.0]], "fc.bias": [3.0]}, mapping={"fc": ""})
            >>> net(hf.ones((1, 2))).item()
            6.0
        """
        state.load_state_dict(self, values, strict, mapping)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return state.deep_copy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise state.not_pickled(self)

    def extra_repr(self) -> str:
        """Return the text that `repr` shows between the module's brackets, such as its sizes."""
        return ""

    def __repr__(self) -> str:
        return tree_text(self)


def _entered(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a class's own ``__call__``, wrapped to prepare the module first, as `Module.__call__` does."""

    @functools.wraps(own)
    def entered(self: Any, *args: Any, **kwargs: Any) -> Any:
        tree.prepare(self)
        if self.recomputed is not None or SETTINGS.observers or ACTIVE:
            return called(self, functools.partial(own, self), args, kwargs)
        return own(self, *args, **kwargs)

    return entered


attached("name_class")(Module, "model")
tree.register(Module)


# -- the printed form of a module: a tree of the modules in it --------------------------------------------------------


def tree_text(module: Any) -> str:
    """Return a module as text, the modules in it indented."""
    return "\n".join(_lines(module, "", ()))


def _lines(module: Any, name: str, around: tuple[Any, ...]) -> list[str]:
    label = f"({name}): " if name else ""
    if any(module is one for one in around):
        return [f"{label}{type(module).__name__}(...)"]
    inside = [
        line for key, value in vars(module).items() for line in _inside(key, value, (*around, module))
    ]
    own = module.extra_repr()
    settings = [one for one in settings_of(module, own) if "=" in one]  # those without a default are its own text
    head = f"{label}{type(module).__name__}({', '.join([own, *settings] if own else settings)}"
    return [f"{head})"] if not inside else [head, *[f"  {line}" for line in inside], ")"]


def _inside(name: str, value: Any, around: tuple[Any, ...]) -> list[str]:
    if isinstance(value, Whole):
        return _lines(value, name, around)
    if name.isdigit() and callable(value):
        return [f"({name}): {_called(value)}"]
    if not isinstance(value, list | tuple | dict) or not holds(value, set()):
        return []
    items: Any = cast("dict[Any, Any]", value).items() if isinstance(value, dict) else enumerate(value)
    lines: list[str] = []
    for key, item in items:
        if callable(item) and not isinstance(item, Whole):
            lines.append(f"({name}.{key}): {_called(item)}")
        else:
            lines += _inside(f"{name}.{key}", item, around)
    return lines


def _called(function: Any) -> str:
    """Return the text for a function among the layers."""
    if isinstance(function, partial):
        given = [*map(repr, function.args), *[f"{name}={value!r}" for name, value in function.keywords.items()]]
        return f"{_called(cast(Any, function).func)}({', '.join(given)})"
    return getattr(function, "__name__", repr(function))
