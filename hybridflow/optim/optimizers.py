"""The optimizers: each names its rule and its settings, with PyTorch's default values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybridflow.core.errors import ArgumentError
from hybridflow.optim import matrix_rules, rules
from hybridflow.optim.groups import Rate
from hybridflow.optim.optimizer import Optimizer
from hybridflow.optim.rule import Rule

Groups = Sequence[Mapping[str, Any]]


def _within(label: str, name: str, value: Any, holds: bool, what: str) -> None:
    if not holds:
        raise ArgumentError(f"{label}: {name} must be {what}", got=f"{name}={value!r}")


def _betas(label: str, betas: Any) -> tuple[float, float]:
    beta1, beta2 = betas
    _within(label, "betas", betas, 0 <= beta1 < 1 and 0 <= beta2 < 1, "two numbers from 0 up to, not including, 1")
    return float(beta1), float(beta2)


class SGD(Optimizer):
    """Stochastic gradient descent, optionally with momentum.

    Args:
        target: a model, or Variables in any nesting of lists, tuples and dicts.
        rate: the learning rate: a number, a Variable or a schedule.
        momentum: the weight of the old velocity in the new one.
        nesterov: whether to use Nesterov's momentum.
        decay: decoupled decay: before its change, a parameter is multiplied by ``1 - rate * decay``.
        clip, groups, nonfinite: see `Optimizer`.

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
        nonfinite: str = "apply",
    ) -> None:
        super().__init__(
            target, rate, clip=clip, groups=groups, nonfinite=nonfinite, momentum=momentum, nesterov=nesterov,
            decay=decay,
        )

    def _rule_of(self, settings: dict[str, Any], ndim: int = 2) -> tuple[Rule, dict[str, Any]]:
        del ndim
        momentum, decay = settings["momentum"], float(settings["decay"])
        _within("SGD", "momentum", momentum, momentum >= 0, "0 at least")
        _within("SGD", "decay", decay, decay >= 0, "0 at least")
        _within("SGD", "nesterov", settings["nesterov"], momentum > 0 or not settings["nesterov"], "with a momentum")
        if not momentum:
            return rules.SGD, {"decay": decay}
        return rules.MOMENTUM, {
            "momentum": float(momentum), "nesterov": bool(settings["nesterov"]), "decay": decay
        }


class Adam(Optimizer):
    """Adam: steps from running means of the gradients and of their squares.

    Args:
        target: a model, or Variables in any nesting of lists, tuples and dicts.
        rate: the learning rate: a number, a Variable or a schedule.
        betas: how much of the two running means is kept in each update.
        epsilon: what is added to the root of the mean square.
        decay: decoupled decay: before its change, a parameter is multiplied by ``1 - rate * decay``.
        clip, groups, nonfinite: see `Optimizer`.

    Reference:
        D. Kingma, J. Ba, "Adam: a method for stochastic optimization", ICLR 2015.
    """

    def __init__(
        self, target: Any, rate: Rate = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8,
        decay: float = 0.0, clip: float | None = None, groups: Groups = (),
        nonfinite: str = "apply",
    ) -> None:
        super().__init__(
            target, rate, clip=clip, groups=groups, nonfinite=nonfinite, betas=betas, epsilon=epsilon, decay=decay
        )

    def _rule_of(self, settings: dict[str, Any], ndim: int = 2) -> tuple[Rule, dict[str, Any]]:
        del ndim
        beta1, beta2 = _betas(self._label(), settings["betas"])
        _within(self._label(), "decay", settings["decay"], settings["decay"] >= 0, "0 at least")
        return rules.ADAMW, {
            "beta1": beta1, "beta2": beta2, "epsilon": float(settings["epsilon"]), "decay": float(settings["decay"])
        }


class AdamW(Adam):
    """Adam with decoupled weight decay.

    Args:
        target: a model, or Variables in any nesting of lists, tuples and dicts.
        rate: the learning rate: a number, a Variable or a schedule.
        betas: how much of the two running means is kept in each update.
        epsilon: what is added to the root of the mean square.
        decay: decoupled decay: before its change, a parameter is multiplied by ``1 - rate * decay``.
        clip, groups, nonfinite: see `Optimizer`.

    Reference:
        I. Loshchilov, F. Hutter, "Decoupled weight decay regularization", ICLR 2019.
    """

    def __init__(
        self, target: Any, rate: Rate = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8,
        decay: float = 1e-2, clip: float | None = None, groups: Groups = (),
        nonfinite: str = "apply",
    ) -> None:
        super().__init__(
            target, rate, clip=clip, groups=groups, nonfinite=nonfinite, betas=betas, epsilon=epsilon, decay=decay
        )


class RMSprop(Optimizer):
    """Gradients divided by the root of the running mean of their squares.

    With ``centered=True``, the running mean of the gradients is subtracted before squaring. A momentum accumulates the
    quotients.

    Args:
        target: a model, or Variables in any nesting of lists, tuples and dicts.
        rate: the learning rate: a number, a Variable or a schedule.
        alpha: how much of the running means is kept in each update.
        epsilon: what is added to the root.
        momentum: the weight of the old velocity in the new one.
        centered: whether to subtract the mean.
        decay: decoupled decay: before its change, a parameter is multiplied by ``1 - rate * decay``.
        clip, groups, nonfinite: see `Optimizer`.

    Reference:
        A. Graves, "Generating sequences with recurrent neural networks", 2013, equations 38 to 45.
    """

    def __init__(
        self, target: Any, rate: Rate = 1e-2, *, alpha: float = 0.99, epsilon: float = 1e-8, momentum: float = 0.0,
        centered: bool = False, decay: float = 0.0, clip: float | None = None, groups: Groups = (),
        nonfinite: str = "apply",
    ) -> None:
        super().__init__(
            target, rate, clip=clip, groups=groups, nonfinite=nonfinite, alpha=alpha, epsilon=epsilon,
            momentum=momentum, centered=centered, decay=decay,
        )

    def _rule_of(self, settings: dict[str, Any], ndim: int = 2) -> tuple[Rule, dict[str, Any]]:
        del ndim
        momentum = settings["momentum"]
        _within("RMSprop", "alpha", settings["alpha"], 0 <= settings["alpha"] <= 1, "from 0 to 1")
        _within("RMSprop", "momentum", momentum, momentum >= 0, "0 at least")
        attrs = {name: float(settings[name]) for name in ("alpha", "epsilon", "decay")}
        if momentum:
            attrs["momentum"] = float(momentum)
        return rules.RMSPROP[bool(momentum), bool(settings["centered"])], attrs


class Adagrad(Optimizer):
    """Gradients divided by the root of the sum of their squares so far.

    Args:
        target: a model, or Variables in any nesting of lists, tuples and dicts.
        rate: the learning rate: a number, a Variable or a schedule.
        epsilon: what is added to the root.
        decay: decoupled decay: before its change, a parameter is multiplied by ``1 - rate * decay``.
        clip, groups, nonfinite: see `Optimizer`.
    """

    def __init__(
        self, target: Any, rate: Rate = 1e-2, *, epsilon: float = 1e-10, decay: float = 0.0,
        clip: float | None = None, groups: Groups = (),
        nonfinite: str = "apply",
    ) -> None:
        super().__init__(target, rate, clip=clip, groups=groups, nonfinite=nonfinite, epsilon=epsilon, decay=decay)

    def _rule_of(self, settings: dict[str, Any], ndim: int = 2) -> tuple[Rule, dict[str, Any]]:
        del ndim
        return rules.ADAGRAD, {name: float(value) for name, value in settings.items()}


class Adadelta(Optimizer):
    """Gradients scaled to the size of previous steps, both measured by running means of squares.

    Args:
        target: a model, or Variables in any nesting of lists, tuples and dicts.
        rate: the learning rate: a number, a Variable or a schedule.
        rho: how much of the running means is kept in each update.
        epsilon: what is added to the mean squares before their roots are taken.
        decay: decoupled decay: before its change, a parameter is multiplied by ``1 - rate * decay``.
        clip, groups, nonfinite: see `Optimizer`.
    """

    def __init__(
        self, target: Any, rate: Rate = 1.0, *, rho: float = 0.9, epsilon: float = 1e-6, decay: float = 0.0,
        clip: float | None = None, groups: Groups = (),
        nonfinite: str = "apply",
    ) -> None:
        super().__init__(
            target, rate, clip=clip, groups=groups, nonfinite=nonfinite, rho=rho, epsilon=epsilon, decay=decay
        )

    def _rule_of(self, settings: dict[str, Any], ndim: int = 2) -> tuple[Rule, dict[str, Any]]:
        del ndim
        _within("Adadelta", "rho", settings["rho"], 0 <= settings["rho"] <= 1, "from 0 to 1")
        return rules.ADADELTA, {name: float(value) for name, value in settings.items()}


class Lion(Optimizer):
    """Lion: steps of the same size for every element, in the direction of the sign of a running mean of the gradients.

    Args:
        target: a model, or Variables in any nesting of lists, tuples and dicts.
        rate: the learning rate: a number, a Variable or a schedule.
        betas: how much of the running mean is kept: for the step, and for the next update.
        decay: decoupled decay: before its change, a parameter is multiplied by ``1 - rate * decay``.
        clip, groups, nonfinite: see `Optimizer`.

    Reference:
        X. Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023.
    """

    def __init__(
        self, target: Any, rate: Rate = 1e-4, *, betas: tuple[float, float] = (0.9, 0.99), decay: float = 0.0,
        clip: float | None = None, groups: Groups = (),
        nonfinite: str = "apply",
    ) -> None:
        super().__init__(target, rate, clip=clip, groups=groups, nonfinite=nonfinite, betas=betas, decay=decay)

    def _rule_of(self, settings: dict[str, Any], ndim: int = 2) -> tuple[Rule, dict[str, Any]]:
        del ndim
        beta1, beta2 = _betas("Lion", settings["betas"])
        return rules.LION, {"beta1": beta1, "beta2": beta2, "decay": float(settings["decay"])}


class Adafactor(Optimizer):
    """Adafactor: like Adam with less memory. Of a matrix it keeps only the mean squares of its rows and columns.

    Steps are relative to the parameter's root mean square, and decrease with the square root of the number of updates.

    Args:
        target: a model, or Variables in any nesting of lists, tuples and dicts.
        rate: the largest step, relative to the parameter's root mean square.
        beta2_decay: the newest squares get the weight ``n ** beta2_decay`` in the n-th update.
        epsilon: two lower bounds: for the root mean square of gradients (None: the dtype's machine epsilon) and of
            parameters.
        threshold: the largest root mean square that a change may have before it is multiplied by the rate.
        decay: decoupled decay.
        clip, groups, nonfinite: see `Optimizer`.

    Reference:
        N. Shazeer, M. Stern, "Adafactor: adaptive learning rates with sublinear memory cost", ICML 2018.
    """

    def __init__(
        self, target: Any, rate: Rate = 1e-2, *, beta2_decay: float = -0.8,
        epsilon: tuple[float | None, float] = (None, 1e-3), threshold: float = 1.0, decay: float = 0.0,
        clip: float | None = None, groups: Groups = (), nonfinite: str = "apply",
    ) -> None:
        super().__init__(
            target, rate, clip=clip, groups=groups, nonfinite=nonfinite, beta2_decay=beta2_decay, epsilon=epsilon,
            threshold=threshold, decay=decay,
        )

    def _rule_of(self, settings: dict[str, Any], ndim: int = 2) -> tuple[Rule, dict[str, Any]]:
        beta2_decay, threshold = settings["beta2_decay"], settings["threshold"]
        _within("Adafactor", "beta2_decay", beta2_decay, beta2_decay <= 0, "0 at most")
        _within("Adafactor", "threshold", threshold, threshold > 0, "positive")
        _within("Adafactor", "decay", settings["decay"], settings["decay"] >= 0, "0 at least")
        first, second = settings["epsilon"]
        attrs = {
            "beta2_decay": float(beta2_decay), "epsilon1": None if first is None else float(first),
            "epsilon2": float(second), "threshold": float(threshold), "decay": float(settings["decay"]),
        }
        return matrix_rules.ADAFACTOR if ndim > 1 else matrix_rules.ADAFACTOR_VECTOR, attrs


class Muon(Optimizer):
    """Muon: momentum with nearly orthogonal steps for matrices. AdamW updates the other parameters.

    Matrix products use the parameter's dtype, at least float32; torch rounds to bfloat16.

    Args:
        target: a model, or Variables in any nesting of lists, tuples and dicts.
        rate: the learning rate.
        momentum: the weight of the old velocity in the new one.
        nesterov: whether to use Nesterov's momentum.
        decay: decoupled decay.
        coefficients: the polynomial that each round applies to the singular values.
        rounds: the number of rounds.
        epsilon: the smallest norm that a step is divided by.
        scale: how steps grow with the shape: ``"original"``, or ``"adam"`` for the size that Adam's steps have.
        matrices: whether matrices get orthogonal steps. A group with False leaves them to AdamW, as is usual for
            embeddings.
        betas, adam_epsilon: AdamW's settings, for parameters that are not matrices.
        clip, groups, nonfinite: see `Optimizer`.

    Reference:
        K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.
    """

    def __init__(
        self, target: Any, rate: Rate = 1e-3, *, momentum: float = 0.95, nesterov: bool = True, decay: float = 0.1,
        coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315), rounds: int = 5, epsilon: float = 1e-7,
        scale: str = "original", matrices: bool = True, betas: tuple[float, float] = (0.9, 0.999),
        adam_epsilon: float = 1e-8, clip: float | None = None, groups: Groups = (), nonfinite: str = "apply",
    ) -> None:
        super().__init__(
            target, rate, clip=clip, groups=groups, nonfinite=nonfinite, momentum=momentum, nesterov=nesterov,
            decay=decay, coefficients=coefficients, rounds=rounds, epsilon=epsilon, scale=scale, matrices=matrices,
            betas=betas, adam_epsilon=adam_epsilon,
        )

    def _rule_of(self, settings: dict[str, Any], ndim: int = 2) -> tuple[Rule, dict[str, Any]]:
        beta1, beta2 = _betas("Muon", settings["betas"])
        decay, scale = float(settings["decay"]), settings["scale"]
        _within("Muon", "decay", decay, decay >= 0, "0 at least")
        _within("Muon", "momentum", settings["momentum"], 0 <= settings["momentum"] < 1, "0 at least and below 1")
        _within("Muon", "rounds", settings["rounds"], settings["rounds"] >= 1, "1 at least")
        _within("Muon", "scale", scale, scale in ("original", "adam"), "'original' or 'adam'")
        if ndim != 2 or not settings["matrices"]:
            epsilon = float(settings["adam_epsilon"])
            return rules.ADAMW, {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "decay": decay}
        a, b, c = settings["coefficients"]
        return matrix_rules.MUON, {
            "momentum": float(settings["momentum"]), "nesterov": bool(settings["nesterov"]),
            "coefficients": (float(a), float(b), float(c)), "rounds": int(settings["rounds"]),
            "epsilon": float(settings["epsilon"]), "scale": scale, "decay": decay,
        }
