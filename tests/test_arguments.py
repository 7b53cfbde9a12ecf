"""A call is handed on as it was made: what a callable receives when it is compiled, against what Python gives it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, ArgumentTypeError
from hybridflow.guards.arguments import Parameters

# -- what wrappers receive ----------------------------------------------------------------------------------------


def told(value: Any) -> str:
    return "tensor" if isinstance(value, hf.Tensor) else f"{type(value).__name__} {value!r}"


def note(*args, **kwargs):
    """Print what a function receives: a trace prints once."""
    print([told(one) for one in args], [(name, told(one)) for name, one in kwargs.items()])


def one(v):
    note(v)
    return hf.asarray(1.0)


def default(v, w=7):
    note(v, w)
    return hf.asarray(1.0)


def several(v, *rest):
    note(v, *rest)
    return hf.asarray(1.0)


def named_only(v, *, w=7, k="k"):
    note(v, w=w, k=k)
    return hf.asarray(1.0)


def first_only(v, /, w=7, **others):
    note(v, w, **others)
    return hf.asarray(1.0)


ONES = hf.ones(2)


def tensor_default(v, w=ONES, *rest, k=None, **others):
    note(v, w, *rest, k=k, **others)
    return hf.asarray(1.0)


FUNCTIONS = (one, default, several, named_only, first_only, tensor_default)


def wraps(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        note(len(args), "w" in kwargs, *args, **kwargs)
        return f(*args, **kwargs)

    return wrapper


def wraps_twice(f):
    return wraps(wraps(f))


def signature_by_hand(f):
    def wrapper(*args, **kwargs):
        note(*args, **kwargs)
        return f(*args, **kwargs)

    wrapper.__signature__ = inspect.signature(f)
    return wrapper


def wrong_signature(f):
    def wrapper(*args, **kwargs):
        note(*args, **kwargs)
        return f(*args, **kwargs)

    wrapper.__signature__ = inspect.signature(lambda w=5, *, v=6: None)
    return wrapper


def first_apart(f):
    @functools.wraps(f)
    def wrapper(first, *args, **kwargs):
        note(first, *args, **kwargs)
        return f(first, *args, **kwargs)

    return wrapper


def adds_a_keyword(f):
    @functools.wraps(f)
    def wrapper(*args, scale=2, **kwargs):
        note(*args, scale=scale, **kwargs)
        return f(*args, **kwargs)

    return wrapper


def adds_an_argument(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        note(*args, **kwargs)
        return f("added", *args, **kwargs)

    return wrapper


def drops_an_argument(f):
    @functools.wraps(f)
    def wrapper(dropped, /, *args, **kwargs):
        note(dropped, *args, **kwargs)
        return f(*args, **kwargs)

    return wrapper


def own_names(f):
    @functools.wraps(f)
    def wrapper(p, q=5):
        note(p, q)
        return f(p)

    return wrapper


def own_defaults(f):
    @functools.wraps(f)
    def wrapper(v, w=5, **others):
        note(v, w, **others)
        return f(v, w, **others)

    return wrapper


def names_of_its_own_parameters(f):
    @functools.wraps(lambda args, kwargs=3: None)
    def wrapper(*args, **kwargs):
        note(*args, **kwargs)
        return f(*args, **kwargs)

    return wrapper


def partial_of_a_wrapper(f):
    return functools.partial(wraps(f))


def partial_with_an_argument(f):
    return functools.partial(wraps(f), "given")


def partial_with_a_keyword(f):
    return functools.partial(wraps(f), w="given")


def partial_of_the_function(f):
    return functools.partial(f, w="given")


def of_a_class(f):
    class Holder:
        @functools.wraps(f)
        def method(*args, **kwargs):
            note(*args[1:], **kwargs)
            return f(*args[1:], **kwargs)

        usual = functools.partialmethod(method, w="given")
        of_class = classmethod(method)
        static = staticmethod(wraps(f))
        __call__ = method

    return Holder


def bound_method(f):
    return of_a_class(f)().method


def partial_method(f):
    return of_a_class(f)().usual


def class_method(f):
    return of_a_class(f).of_class


def static_method(f):
    return of_a_class(f)().static


def callable_object(f):
    return of_a_class(f)()


def callable_with_a_signature(f):
    made = of_a_class(f)()
    made.__signature__ = inspect.signature(f)
    return made


def callable_by_a_static_method(f):
    class Holder:
        __call__ = staticmethod(wraps(f))

    return Holder()


def class_with_a_text_signature(f):
    class Holder:
        __text_signature__ = "(v, w=5, /)"

        @functools.wraps(f)
        def __new__(*args, **kwargs):
            note(*args[1:], **kwargs)
            return f(*args[1:], **kwargs)

    return Holder


def compiled_itself(f):
    return hf.compile(wraps(f))


def without_gradients(f):
    return hf.no_grad()(wraps(f))


WRAPPERS = [
    wraps, wraps_twice, signature_by_hand, wrong_signature, first_apart, adds_a_keyword, adds_an_argument,
    drops_an_argument, own_names, own_defaults, names_of_its_own_parameters, partial_of_a_wrapper,
    partial_with_an_argument, partial_with_a_keyword, partial_of_the_function, bound_method, partial_method,
    class_method, static_method, callable_object, callable_with_a_signature, callable_by_a_static_method,
    class_with_a_text_signature, compiled_itself, without_gradients,
]

x = hf.asarray([1.0, 2.0])
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((x,), {}),
    ((x, 3), {}),
    ((x, x, "z"), {}),
    ((x,), {"w": x}),
    ((), {"v": x}),
    ((), {"v": x, "w": 3}),
    ((), {"w": 3, "v": x}),
    ((x,), {"k": "one", "w": 3}),
    ((x,), {"w": 3, "k": "one"}),
    ((x,), {"z": x, "a": None, "w": True}),
    ((x,), {"args": 1, "kwargs": 2, "self": 3, "function": 4}),
    ((x, None), {"v": (1, 2)}),
    ((x,), {"scale": 3, "dropped": 4}),
]


NO_NAMES: Mapping[str, Any] = MappingProxyType({})


def received(function: Callable[..., Any], args: tuple[Any, ...] = (x,), kwargs: Mapping[str, Any] = NO_NAMES) -> str:
    """Return what the functions of a call print, or the type of the exception."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            function(*args, **kwargs)
        except TypeError:
            return "TypeError"
    return printed.getvalue()


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.rest)])
def test_a_wrapper_receives_the_call_as_it_was_made(wrapper, every):
    for number, f in enumerate(FUNCTIONS):
        function = wrapper(f)
        compiled = hf.compile(function)
        for args, kwargs in CALLS[number % every :: every]:
            eager = received(function, args, kwargs)
            given = received(compiled.graph, args, kwargs)
            if not given:  # another call has the same trace
                given = received(hf.compile(function).graph, args, kwargs)
            assert given == eager, (f.__name__, args, kwargs)


@pytest.mark.parametrize("by", [hf.vmap, hf.checkpoint, wraps], ids=["vmap", "checkpoint", "wraps"])
def test_defaults_of_the_function_behind_are_its_own_affair(by):
    w = hf.asarray([1.0, 10.0, 100.0])

    def f(v, w=w):
        return hf.sum(v * w)

    rows = hf.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    function = by(f)
    compiled = hf.compile(function)
    for args, kwargs in (((rows,), {}), ((rows, rows), {}), ((rows,), {"w": rows}), ((rows,), {})):
        expected = function(*args, **kwargs)
        np.testing.assert_array_equal(compiled(*args, **kwargs).numpy(), expected.numpy())


# -- binding ------------------------------------------------------------------------------------------------------

KINDS = [
    inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD,
]


@st.composite
def signatures(draw):
    names = iter("abcdefgh")
    parameters: list[inspect.Parameter] = []
    needs_default = False
    for kind in KINDS:
        several = kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        for _ in range(draw(st.integers(0, 2 if several else 1))):
            has = several and (draw(st.booleans()) or (needs_default and kind is not inspect.Parameter.KEYWORD_ONLY))
            needs_default = has
            default = f"default {len(parameters)}" if has else inspect.Parameter.empty
            parameters.append(inspect.Parameter(next(names), kind, default=default))
    return inspect.Signature(parameters)


def receives(function, args, kwargs):
    """Return what Python gives a function, by parameter; None if it refuses."""
    try:
        return function(*args, **kwargs)
    except TypeError:
        return None


@settings(max_examples=100, deadline=None)
@given(signatures(), st.integers(0, 5), st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=4))
def test_arguments_are_bound_as_python_binds_them(signature, count, names):
    space: dict[str, Any] = {}
    exec(f"def function{signature}: return dict(locals())", space)
    function = space["function"]
    parameters = Parameters.of(function)
    args, kwargs = tuple(range(count)), dict.fromkeys(names, "given")
    expected = receives(function, args, kwargs)
    if expected is None:
        with pytest.raises(ArgumentTypeError, match=r"function: .*\n  got: \d positional"):
            parameters.named(args, kwargs, "function")
        return
    named = parameters.named(args, kwargs, "function")
    assert named == expected
    assert list(named) == list(signature.parameters)
    assert kwargs == dict.fromkeys(names, "given")
    apart = parameters.without_entries("abcdefgh")
    moved = parameters.named(args, kwargs, "function", apart)
    assert all(name in moved for name in names)
    for arguments in (named, moved):
        received = parameters.call(function, (), arguments)
        assert received == expected
        assert [*map(str, received.items())] == [*map(str, expected.items())]  # the order of keywords too


# -- options name the parameters of the function behind -----------------------------------------------------------


class Mode:
    """Equal to every other of its factor."""

    def __init__(self, factor):
        self.factor = factor

    def __eq__(self, other):
        return self.factor == other.factor

    def __hash__(self):
        return self.factor


def scaled(v, mode, w=2):
    return v * w * mode.factor


BEHIND = [wraps, wraps_twice, signature_by_hand, adds_a_keyword, partial_of_a_wrapper]
SPELLINGS: list[Callable[..., Any]] = [
    lambda f, v, mode: f(v, mode, 3),
    lambda f, v, mode: f(v, mode),
    lambda f, v, mode: f(v, mode, w=5),
    lambda f, v, mode: f(v, w=7, mode=mode),
    lambda f, v, mode: f(mode=mode, w=9, v=v),
]


def names_as_own(f):
    """A wrapper whose own parameters have other names than those behind it."""

    @functools.wraps(f)
    def wrapper(first, second, third=4):
        return f(first, second, third)

    return wrapper


@pytest.mark.parametrize("wrapper", BEHIND, ids=lambda one: one.__name__)
def test_static_arguments_of_the_function_behind(wrapper):
    compiled = hf.compile(wrapper(scaled), static_argnames="mode")
    for spelling in SPELLINGS:
        wanted = spelling(scaled, x, Mode(2)).numpy()
        count = compiled.trace_count
        for _ in range(2):
            np.testing.assert_array_equal(spelling(compiled, x, Mode(2)).numpy(), wanted)
        assert compiled.trace_count == count + 1


def test_static_arguments_of_a_wrapper_with_names_of_its_own():
    compiled = hf.compile(names_as_own(scaled), static_argnames=["mode"])
    for _ in range(2):
        assert compiled(x, Mode(2)).tolist() == [8.0, 16.0]
        assert compiled(x, second=Mode(2)).tolist() == [8.0, 16.0]
    assert compiled.trace_count == 1
    spec = hf.TensorSpec([None], hf.float32)
    compiled = hf.compile(names_as_own(lambda v, w, k: v * w * k), input_signature=[spec, spec])
    assert compiled([1, 2], second=[3, 4]).tolist() == [12.0, 32.0]


def test_keywords_keep_their_order_beside_a_static_one():
    def f(x, **others):
        return x * sum(10**place * len(name) for place, name in enumerate(others))

    compiled = hf.compile(f, static_argnames="mode")
    for others in ({"a": 1, "mode": 2}, {"mode": 2, "a": 1}, {"a": 1, "mode": 2}, {"abc": 1, "mode": 2, "ab": 0}):
        assert compiled(1, **others) == f(1, **others)
    assert compiled.trace_count == 3
    assert compiled.explain()[0].signature == {"x": "int 1", "others['a']": "int 1", "mode": "int 2"}


@pytest.mark.parametrize("wrapper", BEHIND, ids=lambda one: one.__name__)
def test_specs_for_arguments_of_the_function_behind(wrapper):
    def f(v, w):
        return v * w

    spec = hf.TensorSpec([None], hf.float32)
    compiled = hf.compile(wrapper(f), input_signature=[spec, spec])
    for size in (2, 3, 5):
        numbers = list(range(size))
        wanted = [number * number for number in numbers]
        assert compiled(numbers, numbers).tolist() == wanted
        assert compiled(numbers, w=numbers).tolist() == wanted
        assert compiled(w=numbers, v=numbers).tolist() == wanted
    assert compiled.trace_count <= 3
    with pytest.raises(ArgumentTypeError, match=r"argument 'w' is .*, its input_signature is"):
        compiled([1.0], w=[[1.0]])
    concrete = hf.compile(wrapper(f)).concrete(spec, spec)
    assert concrete([1, 2, 3], [1, 2, 3]).tolist() == [1.0, 4.0, 9.0]


@pytest.mark.parametrize("wrapper", BEHIND, ids=lambda one: one.__name__)
def test_layouts_for_arguments_of_the_function_behind(wrapper):
    mesh = hf.Mesh({"data": 1})
    compiled = hf.compile(wrapper(scaled), mesh=mesh, in_layouts={"v": ("data",)}, static_argnames="mode")
    for spelling in SPELLINGS:
        wanted = spelling(scaled, x, Mode(2)).numpy()
        np.testing.assert_array_equal(spelling(compiled, x, Mode(2)).numpy(), wanted)


def test_specs_of_a_method_behind_a_decorator():
    class Scaled:
        k = 2.0

        @hf.compile(input_signature=[hf.TensorSpec([None], hf.float32)])
        @wraps
        def method(self, v):
            return v * self.k

    for size in (1, 2, 3):
        assert Scaled().method(list(range(size))).tolist() == [2.0 * number for number in range(size)]


def test_the_names_that_users_see_are_those_of_the_function_behind():
    compiled = hf.compile(wraps(default))
    compiled(x, 3)
    compiled(x, w=3)
    assert [record.signature for record in compiled.explain()] == [
        {"v": "f32[2]", "w": "int 3"}, {"v": "f32[2]", "w": "int 3"},
    ]


@pytest.mark.parametrize("option", [{"static_argnames": "nope"}, {"static_argnames": ["v", "nope"]}])
@pytest.mark.parametrize("function", [one, wraps(one), functools.partial(wraps(one)), wraps(named_only)])
def test_a_name_of_no_parameter(function, option):
    with pytest.raises(ArgumentError, match=r"static_argnames \['nope'\] are no parameters of"):
        hf.compile(function, **option)


# -- a signature that changes -------------------------------------------------------------------------------------


def other_code(v, w=7):
    note("other", v, w)
    return hf.asarray(2.0)


def set_defaults(f):
    f.__defaults__ = (8,)


def set_keyword_defaults(f):
    f.__kwdefaults__ = {"w": 8, "k": "other"}


def set_code(f):
    f.__code__ = other_code.__code__


CHANGES = [(default, set_defaults), (named_only, set_keyword_defaults), (default, set_code)]


def copy_of(f):
    made = type(f)(f.__code__, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
    made.__kwdefaults__ = f.__kwdefaults__ and dict(f.__kwdefaults__)
    return made


@pytest.mark.parametrize(("function", "change"), CHANGES)
@pytest.mark.parametrize("wrapper", [lambda f: f, *WRAPPERS], ids=lambda one: one.__name__)
def test_a_function_that_changes(wrapper, function, change):
    function = copy_of(function)
    called = wrapper(function)
    compiled = hf.compile(called)
    for turn in range(2):
        for args, kwargs in (((x,), {}), ((x, 3), {}), ((x,), {"w": 4})):
            eager = received(called, args, kwargs)
            given = received(compiled.graph, args, kwargs)
            assert given in (eager, *([""] if turn == 0 else [])), (args, kwargs)
        change(function)


@pytest.mark.parametrize("state", [
    lambda f: (other_code, (), {}, {}), lambda f: (f, ("given",), {}, {}), lambda f: (f, (), {"w": "given"}, {}),
    lambda f: (f, (), {"k": "given"}, {}), lambda f: (wraps(f), (), {}, {}),
])
@pytest.mark.parametrize("function", [default, first_only, wraps(default), wraps(first_only)])
def test_a_partial_whose_state_changes(function, state):
    called = functools.partial(function, w="first")
    compiled = hf.compile(called)
    outcomes = []
    for _ in range(2):
        eager = received(called)
        outcomes.append(eager)
        assert received(compiled.graph) == eager
        assert received(compiled.graph) == ("TypeError" if eager == "TypeError" else "")
        called.__setstate__(state(function))
    assert len({*outcomes}) == 2
