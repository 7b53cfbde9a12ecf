"""Open sizes where they are no sizes any more: keys, text, and what is kept outside of the function."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import hybridflow as hf
from hybridflow.core.errors import MutationError

TABLE = {(2,): 5.0, (3,): 7.0, 4: 9.0, "(6,)": 11.0}
USES = {
    "a shape as a key": lambda x: TABLE.get(x.shape, 1.0),
    "a size as a key": lambda x: TABLE.get(x.shape[0], 1.0),
    "a shape among keys": lambda x: 2.0 if x.shape in TABLE else 1.0,
    "a size in a set": lambda x: 2.0 if x.shape[0] in {2, 5} else 1.0,
    "a set that is made of sizes": lambda x: float(len({x.shape[0], 4, 5})),
    "a dict that is made of sizes": lambda x: {x.shape[0]: 3.0, 5: 4.0}.get(5, 0.0) + len({x.shape[0]: 3.0, 5: 4.0}),
    "hash": lambda x: float(hash(x.shape[0]) % 7),
    "str": lambda x: float(str(x.shape[0])),
    "repr": lambda x: TABLE.get(repr(x.shape), 1.0),
    "an f-string": lambda x: float(len(f"{x.shape} {x.size:>4} {x.shape[0]:03d}")),
    "format": lambda x: float("{}".format(x.shape[0] * 2)),  # noqa: UP032 (it is what is tested)
    "percent": lambda x: float("%d" % x.shape[0]) + len("%s" % (x.shape,)),  # noqa: UP031 (likewise)
    "join": lambda x: float(len("x".join(map(str, x.shape)))),
    "sorted": lambda x: float(sorted([x.shape[0], 4, 3])[0]),
}


@pytest.mark.parametrize("use", USES)
def test_a_size_is_the_number_of_the_call(use):
    def f(x):
        return hf.sum(x) * USES[use](x)

    compiled = hf.compile(f)
    for size in (2, 5, 3, 4, 12, 6, 2, 4):
        x = hf.arange(float(size))
        assert compiled(x).item() == f(x).item()


def kept(f_of: Any) -> Any:
    state = SimpleNamespace(last=None, seen=[], count=0, shapes=set(), table={}, item=None)

    class Item:
        def __init__(self, size):
            self.size = size

    def f(x):
        state.last = (1, x.shape)
        state.seen.append(x.shape[0])
        state.count += x.shape[0]
        state.shapes.add(x.shape)
        state.table[x.shape[0]] = x.size * 2
        state.half = x.shape[0] / 2
        state.item = Item(x.shape[0])
        return hf.sum(x) * len(state.shapes)

    f = f_of(f)
    results = [(f(hf.arange(float(size))).item(), state.item.size) for size in (2, 5, 5, 3, 7, 2, 9, 5)]
    del state.item
    types = {type(one) for one in (*state.seen, *state.table, *state.table.values(), state.count, state.half)}
    return results, vars(state), types


def test_a_size_that_is_kept_is_a_number():
    assert kept(hf.compile) == kept(lambda f: f)


def test_a_size_that_the_signature_leaves_open_is_not_kept():
    seen: list[Any] = []

    @hf.compile(input_signature=[hf.TensorSpec((None,), hf.float32)])
    def f(x):
        seen.append(x.shape[0])
        return x

    with pytest.raises(MutationError, match="stores a size outside of itself that its signature leaves open"):
        f(hf.arange(3.0))
    assert seen == []


def test_sizes_that_stay_sizes_are_one_trace():
    @hf.compile
    def f(x):
        return hf.sum(x) / x.shape[0] + x.shape[0] * hf.ones(x.shape)

    for size in (2, 5, 3, 7):
        f(hf.arange(float(size)))
    assert f.cache_info().traces == 2
    assert "x_0" in str(f.graph(hf.arange(9.0)))
