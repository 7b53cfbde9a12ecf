"""XLA options by backend and jaxlib version, each with its reason and its test."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version as installed_version

import jax

from hybridflow.backend.cores import usable_cores

MEASURED: tuple[tuple[int, ...], ...] = ((0, 10, 2), (0, 12, 0))
"""The jaxlib versions with which these options were measured, the newest last.

With later versions, options that only affect speed are left out, and the others are tried before they are used.
"""

_PLATFORM: ContextVar[str | None] = ContextVar("hybridflow platform", default=None)


@contextmanager
def lowered_on(platform: str) -> Generator[None]:
    """Say on which platform the programs run that a ``with`` block lowers."""
    token = _PLATFORM.set(platform)
    try:
        yield
    finally:
        _PLATFORM.reset(token)


def is_on_cpus() -> bool:
    """Whether the program that is being lowered runs on CPUs, so that it is spelled as XLA:CPU runs it fastest."""
    return (_PLATFORM.get() or jax.default_backend()) == "cpu"


@dataclass(frozen=True)
class XlaOption:
    """One compiler option.

    Attributes:
        name, value: the option as XLA spells it; the value None leaves the choice to XLA.
        backend: ``cpu``, ``gpu``, ``tpu`` or ``*``.
        since, until: the jaxlib versions it applies to, from `since` up to but excluding `until`.
        why: the reason.
        test: the test of the reason.
        for_speed: whether it only affects speed.
        most_cores: the largest number of cores it applies to; None for any.
    """

    name: str
    value: str | bool | int | None
    backend: str
    since: tuple[int, ...]
    until: tuple[int, ...] | None
    why: str
    test: str
    for_speed: bool = False
    most_cores: int | None = None


OPTIONS: tuple[XlaOption, ...] = (
    XlaOption(
        name="xla_cpu_experimental_ynn_fusion_type",
        value="",
        backend="cpu",
        since=(0, 10),
        until=None,
        why="jaxlib 0.10.2 segfaults on sum(a*b, axis=3) of f32[3,1,2,2,8,8,8]; 0.12.0 does not, but without these "
        "fusions an MLP's step took 0.87 of the time there too",
        test="tests/test_xla_options.py::test_a_program_that_crashes_jaxlib",
    ),
    XlaOption(
        name="xla_cpu_experimental_ynn_fusion_type",
        value="LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION",
        backend="cpu",
        since=(0, 10),
        until=(0, 11),
        why="a library computes convolutions of 32 channels and more, by which a U-Net's step took 0.8 of the time on "
        "one core; on two it took as long and a ResNet's 1.15, since few channels keep only one core busy",
        test="tests/test_xla_options.py::test_wide_convolutions_are_left_to_a_library",
        for_speed=True,
        most_cores=1,
    ),
    XlaOption(
        name="xla_allow_excess_precision",
        value=False,
        backend="*",
        since=(0, 10),
        until=None,
        why="otherwise XLA keeps bfloat16 intermediates in float32 and the compiled result is not the eager one",
        test="tests/test_xla_options.py::test_excess_precision_is_off",
    ),
)
EAGER_OPTIONS: tuple[XlaOption, ...] = (
    XlaOption(
        name="xla_backend_optimization_level",
        value=0,
        backend="cpu",
        since=(0, 10),
        until=None,
        why="an op compiled on its own in eager mode is compiled about three times faster",
        test="tests/test_xla_options.py::test_eager_operations_are_compiled_quickly",
        for_speed=True,
    ),
    XlaOption(
        name="xla_cpu_use_fusion_emitters",
        value=False,
        backend="cpu",
        since=(0, 10),
        until=(0, 11, 1),
        why="with the level above: one op has nothing to fuse (jaxlib 0.11.2 no longer knows the option)",
        test="tests/test_xla_options.py::test_eager_operations_are_compiled_quickly",
        for_speed=True,
    ),
)
PRODUCT_OPTIONS: tuple[XlaOption, ...] = (
    XlaOption(
        name="xla_cpu_experimental_ynn_fusion_type",
        value="LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
        backend="cpu",
        since=(0, 10),
        until=(0, 11),
        why="products of float32 matrices of 10 million floating-point operations and more took 0.7 to 1.0 of the time "
        "that way, those of 1 million up to 1.5; what crashes are sums",
        test="tests/test_xla_options.py::test_large_products_are_left_to_a_library",
        for_speed=True,
    ),
    XlaOption(
        name="xla_cpu_experimental_ynn_fusion_type",
        value="LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION",
        backend="cpu",
        since=(0, 10),
        until=(0, 11),
        why="the library computes the convolutions of these programs too, as of all others",
        test="tests/test_xla_options.py::test_wide_convolutions_are_left_to_a_library",
        for_speed=True,
        most_cores=1,
    ),
)
"""Options for programs with large matrix products; they replace others of the same name."""
MESH_OPTIONS: tuple[XlaOption, ...] = (
    XlaOption(
        name="xla_cpu_experimental_ynn_fusion_type",
        value=None,
        backend="cpu",
        since=(0, 12),
        until=None,
        why="with eight CPU devices, steps of MLPs and transformers took 0.7 to 0.95 of the time with XLA's own choice "
        "of what a library computes; one device is faster without",
        test="tests/test_xla_options.py::test_xla_chooses_what_a_library_computes_on_a_mesh",
        for_speed=True,
    ),
)
"""Options for programs on several devices; they replace others of the same name."""
GATHER_OPTIONS: tuple[XlaOption, ...] = (
    XlaOption(
        name="xla_disable_hlo_passes",
        value="cpu-all-reduce-combiner",
        backend="cpu",
        since=(0, 10),
        until=None,
        why="otherwise one reduction of all gradients follows the last of them, until when all are kept whole",
        test="tests/meshes/mesh_sharding.py::test_resharding_holds_two_blocks_weights",
    ),
    XlaOption(
        name="xla_cpu_scheduler_type",
        value="CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
        backend="cpu",
        since=(0, 10),
        until=None,
        why="otherwise XLA gathers all weights before the first layer: with both options, the temporary memory of 3 "
        "and 8 blocks of an MLP fell from 12.6 and 33.6 MB to 3.4 and 3.5; small programs take longer",
        test="tests/meshes/mesh_sharding.py::test_resharding_holds_two_blocks_weights",
    ),
)
"""Options for programs on several devices that gather many parts of Variables, and again for gradients."""
MANY_PARTS = 1 << 23
"""The number of bytes that such a program gathers at least."""
PIECE = 1 << 24
"""The largest number of bytes in which a program allocates its temporary memory, where it does so in pieces."""
SMALL_VALUE = PIECE * 5 // 8
"""The largest number of bytes of a value in such a program; XLA joins some, and warns of any beyond a piece."""
PIECE_OPTIONS: tuple[XlaOption, ...] = (
    XlaOption(
        name="xla_multiheap_size_constraint_per_heap",
        value=PIECE,
        backend="cpu",
        since=(0, 10),
        until=None,
        why="glibc returns more than 32 MiB in one piece to the system after each call, and the system clears the next "
        "call's memory page by page: in smaller pieces, steps of convnets and LSTMs took 0.8 to 0.9 of the time",
        test="tests/test_xla_options.py::test_temporary_memory_in_pieces",
        for_speed=True,
    ),
)
"""Options for programs with convolutions or large loops, of values up to `SMALL_VALUE`."""
MANY_ROWS = 1 << 23
"""The number of bytes that a large loop returns at least."""
CALL_OPTIONS: tuple[XlaOption, ...] = (
    XlaOption(
        name="xla_cpu_flatten_after_fusion",
        value="true",
        backend="cpu",
        since=(0, 10),
        until=None,
        why="otherwise XLA copies a function that it must not inline for every call of it before it does anything "
        "else, and optimises each copy: with it, 96 layers of a transformer compiled in 0.8 of the time",
        test="tests/test_xla_options.py::test_functions_are_copied_per_call_only_when_they_are_optimised",
        for_speed=True,
    ),
)
"""Extra options for programs with functions that are not inlined, if they call no other function more than once."""


@cache
def jaxlib_version() -> tuple[int, ...]:
    """Return the version of the installed jaxlib."""
    return tuple(int(part) for part in installed_version("jaxlib").split(".")[:3] if part.isdigit())


def is_measured() -> bool:
    """Whether the installed jaxlib is no newer than the newest in `MEASURED`."""
    return jaxlib_version()[:2] <= MEASURED[-1][:2]


@cache
def _is_known(option: XlaOption) -> bool:
    """Whether XLA accepts an option; if not, warn."""
    try:
        jax.jit(lambda: True, compiler_options={option.name: option.value})()
    except jax.errors.JaxRuntimeError as error:
        warnings.warn(
            f"jaxlib {installed_version('jaxlib')} does not take the XLA option {option.name}, which is left out "
            f"({error}). It is there because {option.why}.",
            stacklevel=2,
        )
        return False
    return True


def compiler_options(
    *, eager: bool = False, large_products: bool = False, many_small_values: bool = False,
    backend: str | None = None, several: bool = False, gathers: bool = False,
) -> dict[str, str | bool | int]:
    """Return the options for a compilation on a backend, and whether for several devices; None is jax's default one."""
    backend = backend or jax.default_backend()
    table = OPTIONS + EAGER_OPTIONS * eager + PRODUCT_OPTIONS * large_products
    table += MESH_OPTIONS * several + GATHER_OPTIONS * gathers + PIECE_OPTIONS * many_small_values
    return _values([option for option in table if _applies(option, backend) and (is_measured() or _is_known(option))])


def call_options(backend: str) -> dict[str, str | bool | int]:
    """Return the extra options for a program with functions that are not inlined; XLA ignores unknown ones."""
    return _values([option for option in CALL_OPTIONS if _applies(option, backend)])


def _values(options: Iterable[XlaOption]) -> dict[str, str | bool | int]:
    """Return the values of options, except those left to XLA; of several with one name, the last one counts."""
    last = {option.name: option.value for option in options}
    return {name: value for name, value in last.items() if value is not None}


def _applies(option: XlaOption, backend: str) -> bool:
    version = jaxlib_version()
    return (
        option.backend in ("*", backend)
        and option.since <= version
        and (option.until is None or version < option.until)
        and (is_measured() or not option.for_speed)
        and (option.most_cores is None or usable_cores("OMP_NUM_THREADS") <= option.most_cores)
    )
