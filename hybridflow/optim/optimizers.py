"""The optimizers: each says its rule, and what torch calls its settings' defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybridflow.core.errors import ArgumentError, message
from hybridflow.optim import rules
from hybridflow.optim.optimizer import Optimizer, Rate
from hybridflow.optim.rules import Rule

Groups = Sequence[Mapping[str, Any]]


def _within(label: str, name: str, value: Any, holds: bool, what: str) -> None:
    if not holds:
        raise ArgumentError(message(f"{label}: {name} must be {what}", got=f"{name}={value!r}"))


def _betas(label: str, betas: Any) -> tuple[float, float]:
    beta1, beta2 = betas
    _within(label, "betas", betas, 0 <= beta1 < 1 and 0 <= beta2 < 1, "two numbers from 0 up to, not including, 1")
    return float(beta1), float(beta2)


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if asked for.

    Example:
        >>> import hybridflow as hf
        >>> w = hf.Variable([1.0, 2.0], name="w")
        >>> opt = hf.optim.SGD([w], rate=0.5)
        >>> opt.update([hf.asarray([1.0, 1.0])])
        >>> w
        Variable([0.5, 1.5], dtype=float32, name='w')
    """

    def __init__(
        self, target: Any, rate: Rate = 1e-3, *, momentum: float = 0.0, nesterov: bool = False, decay: float = 0.0,
        clip: float | None = None, groups: Groups = (),
    ) -> None:  # fmt: skip
        super().__init__(
            target, rate, clip=clip, groups=groups, momentum=momentum, nesterov=nesterov, decay=decay
        )

    def _rule_of(self, settings: dict[str, Any]) -> tuple[Rule, dict[str, Any]]:
        momentum, decay = settings["momentum"], float(settings["decay"])
        _within("SGD", "momentum", momentum, momentum >= 0, "0 at least")
        _within("SGD", "decay", decay, decay >= 0, "0 at least")
        _within("SGD", "nesterov", settings["nesterov"], momentum > 0 or not settings["nesterov"], "with a momentum")
        if not momentum:
            return rules.SGD, {"decay": decay}
        return rules.MOMENTUM, {
            "momentum": float(momentum), "nesterov": bool(settings["nesterov"]), "decay": decay
        }  # fmt: skip


class Adam(Optimizer):
    """Adam: steps of the size of the rate, from running means of the gradients and of their squares.

    Reference:
        D. Kingma, J. Ba, "Adam: a method for stochastic optimization", ICLR 2015.
    """

    def __init__(
        self, target: Any, rate: Rate = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8,
        decay: float = 0.0, clip: float | None = None, groups: Groups = (),
    ) -> None:  # fmt: skip
        super().__init__(target, rate, clip=clip, groups=groups, betas=betas, epsilon=epsilon, decay=decay)

    def _rule_of(self, settings: dict[str, Any]) -> tuple[Rule, dict[str, Any]]:
        beta1, beta2 = _betas(self._label(), settings["betas"])
        _within(self._label(), "decay", settings["decay"], settings["decay"] >= 0, "0 at least")
        return rules.ADAMW, {
            "beta1": beta1, "beta2": beta2, "epsilon": float(settings["epsilon"]), "decay": float(settings["decay"])
        }  # fmt: skip


class AdamW(Adam):
    """Adam with weight decay that is apart from the gradients.

    Reference:
        I. Loshchilov, F. Hutter, "Decoupled weight decay regularization", ICLR 2019.
    """

    def __init__(
        self, target: Any, rate: Rate = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8,
        decay: float = 1e-2, clip: float | None = None, groups: Groups = (),
    ) -> None:  # fmt: skip
        super().__init__(target, rate, betas=betas, epsilon=epsilon, decay=decay, clip=clip, groups=groups)


class RMSprop(Optimizer):
    """Gradients divided by the root of the running mean of their squares."""

    def __init__(
        self, target: Any, rate: Rate = 1e-2, *, alpha: float = 0.99, epsilon: float = 1e-8, decay: float = 0.0,
        clip: float | None = None, groups: Groups = (),
    ) -> None:  # fmt: skip
        super().__init__(target, rate, clip=clip, groups=groups, alpha=alpha, epsilon=epsilon, decay=decay)

    def _rule_of(self, settings: dict[str, Any]) -> tuple[Rule, dict[str, Any]]:
        _within("RMSprop", "alpha", settings["alpha"], 0 <= settings["alpha"] <= 1, "from 0 to 1")
        return rules.RMSPROP, {name: float(value) for name, value in settings.items()}


class Adagrad(Optimizer):
    """Gradients divided by the root of the sum of their squares so far."""

    def __init__(
        self, target: Any, rate: Rate = 1e-2, *, epsilon: float = 1e-10, decay: float = 0.0,
        clip: float | None = None, groups: Groups = (),
    ) -> None:  # fmt: skip
        super().__init__(target, rate, clip=clip, groups=groups, epsilon=epsilon, decay=decay)

    def _rule_of(self, settings: dict[str, Any]) -> tuple[Rule, dict[str, Any]]:
        return rules.ADAGRAD, {name: float(value) for name, value in settings.items()}


class Adadelta(Optimizer):
    """Steps of the size of those before, from running means of the squares of both."""

    def __init__(
        self, target: Any, rate: Rate = 1.0, *, rho: float = 0.9, epsilon: float = 1e-6, decay: float = 0.0,
        clip: float | None = None, groups: Groups = (),
    ) -> None:  # fmt: skip
        super().__init__(target, rate, clip=clip, groups=groups, rho=rho, epsilon=epsilon, decay=decay)

    def _rule_of(self, settings: dict[str, Any]) -> tuple[Rule, dict[str, Any]]:
        _within("Adadelta", "rho", settings["rho"], 0 <= settings["rho"] <= 1, "from 0 to 1")
        return rules.ADADELTA, {name: float(value) for name, value in settings.items()}


class Lion(Optimizer):
    """Steps of one size in the direction of the sign of a running mean of the gradients.

    Reference:
        X. Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023.
    """

    def __init__(
        self, target: Any, rate: Rate = 1e-4, *, betas: tuple[float, float] = (0.9, 0.99), decay: float = 0.0,
        clip: float | None = None, groups: Groups = (),
    ) -> None:  # fmt: skip
        super().__init__(target, rate, clip=clip, groups=groups, betas=betas, decay=decay)

    def _rule_of(self, settings: dict[str, Any]) -> tuple[Rule, dict[str, Any]]:
        beta1, beta2 = _betas("Lion", settings["betas"])
        return rules.LION, {"beta1": beta1, "beta2": beta2, "decay": float(settings["decay"])}
