"""Every way to read Python state, with every way to change it: a compiled call gives what the function itself gives.

The pairs are in read_matrix.py. test_guards.py, test_things_read.py and test_hidden_reads.py have single cases.
"""

import warnings
from collections import defaultdict

import pytest
import read_matrix
from read_matrix import KINDS, ROUTES

import hybridflow as hf
from hybridflow.core.errors import HybridflowError

QUESTIONS = defaultdict(list)
for _name, _way, _change in read_matrix.questions():
    QUESTIONS[_way].append((_name, _change))

NO_METHODS = {
    "__defaults__", "a default list", "a default object", "__kwdefaults__", "an attribute of a function", "a cell",
    "__code__", "a wrapped function", "a function without source", "one without source, by a local",
    "a shadowed builtin", "a key's type",
}
"""Kinds that are functions, which a class would make methods."""
REFUSED = {
    ("a_partial_itself", "a NumPy array"), ("a_partial_itself", "np.sum"), ("a_partial_itself", "ndarray.tolist"),
    ("a_partial_itself", "an array of objects"), ("a_partial_itself", "json.dumps"),
}
"""Where a default is an argument, so that an array is a tensor and a float a traced one: an error says so."""


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    with read_matrix.compiled_once():
        yield


def number(result):
    return float(hf.asarray(result))


def answers(name, way, change):
    """Return what compiled calls and the function itself give before and after a change."""
    one = KINDS[name]
    h = one.make(2.0)
    route = ROUTES[way](one.read, h)
    t = hf.asarray(1.0)
    f = hf.compile(route.function)
    found = [number(f(t, *route.args)), number(f(t, *route.args))]
    expected = [number(route.function(t, *route.args))] * 2
    if change == "put":
        route.put(one.make(5.0))
    else:
        one.changes[change](h)
    found.append(number(f(t, *route.args)))
    expected.append(number(route.function(t, *route.args)))
    return found, expected


def test_there_are_enough_questions():
    assert sum(map(len, QUESTIONS.values())) >= 3000


@pytest.mark.parametrize("way", QUESTIONS)
def test_what_is_read_is_never_stale(way):
    wrong = []
    for name, change in QUESTIONS[way]:
        if way == "a_fresh_object" and name in NO_METHODS:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hf.EffectWarning)
            warnings.filterwarnings("ignore", "functools.partial will be a method", FutureWarning)
            try:
                found, expected = answers(name, way, change)
            except (HybridflowError, TypeError):
                assert (way, name) in REFUSED, (name, change)
                continue
        if found != pytest.approx(expected, nan_ok=True):
            wrong.append((name, change, found, expected))
    assert not wrong


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.asserts] * ("assert" in name)) for name in KINDS]
)
def test_every_change_is_one(name):
    """A change that is none would be a question that nothing can fail."""
    one = KINDS[name]
    for change in one.changes:
        h = one.make(2.0)
        before = number(one.read(h))
        one.changes[change](h)
        assert number(one.read(h)) != before, change
