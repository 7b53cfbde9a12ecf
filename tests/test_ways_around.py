"""State that is read and written in roundabout ways: reads that fail and are handled, super(), setters, `getattr`.

Every program runs eagerly and compiled on state of its own, with the same changes between its calls.
"""

import collections
import contextlib
import functools
import io
import operator
import types

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import TracedValueError

NAME = "GLOBAL_OF_THESE_TESTS"
Namespace = types.SimpleNamespace


class Slots:
    __slots__ = ("k",)


class Base:
    """Attributes that are computed, read and stored by classes between a class and its base."""

    unit = 3.0

    def __init__(self):
        self.k = 1.0
        self.log = []

    @property
    def value(self):
        return self.k

    @value.setter
    def value(self, value):
        self.log.append("value")
        self.k = value

    @functools.cached_property
    def kept(self):
        return self.k * 100

    @classmethod
    def of_class(cls):
        return cls.unit


class Middle(Base):
    @property
    def value(self):
        return super().value * 2

    @value.setter
    def value(self, value):
        Base.value.fset(self, value + 1)


class Derived(Middle):
    @property
    def value(self):
        return super().value + super(Middle, self).value + super().of_class()

    @value.setter
    def value(self, value):
        Middle.value.fset(self, value * 2)

    @property
    def kept_by_base(self):
        return super().kept


class Telling(Base):
    """One that says how its attributes are stored and found."""

    def __setattr__(self, name, value):
        self.__dict__.setdefault("stored", []).append(name)
        object.__setattr__(self, name, value)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        super().__setattr__("asked", self.__dict__.get("asked", 0) + 1)
        return len(name) + 0.5

    @property
    def failing(self):
        raise AttributeError("failing")


class Counted:
    """A descriptor that counts how often it is asked."""

    def __init__(self):
        self.reads = 0
        self.value = 1.0

    def __get__(self, obj, kind=None):
        self.reads += 1
        return self.value

    def __set__(self, obj, value):
        self.value = value


def absent_attribute(state):
    try:
        return state.late
    except AttributeError:
        return -1.0


def absent_in_class(state):
    try:
        return type(state).late
    except AttributeError:
        return -1.0


def absent_suppressed(state):
    found = -1.0
    with contextlib.suppress(AttributeError):
        found = state.late
    return found


def absent_then_deleted(state):
    try:
        del state.late
    except AttributeError:
        return -1.0
    return 1.0


def absent_global(state):
    try:
        return GLOBAL_OF_THESE_TESTS
    except NameError:
        return -1.0


def absent_global_suppressed(state):
    found = -1.0
    with contextlib.suppress(NameError):
        found = GLOBAL_OF_THESE_TESTS  # noqa: F821 (it comes and goes)
    return found


@pytest.mark.parametrize("kind", [Namespace, Slots, type("Late", (), {})])
@pytest.mark.parametrize("read", [absent_attribute, absent_suppressed, absent_then_deleted])
def test_an_attribute_that_was_not_there_is_found_later(read, kind):
    state = kind()
    name = "k" if kind is Slots else "late"
    if kind is Slots:
        read = {absent_attribute: slot, absent_suppressed: slot, absent_then_deleted: slot_deleted}[read]
    compiled = hf.compile(lambda x: x * read(state))
    x = hf.asarray([1.0, 2.0])
    for change in (None, 5.0, None, 6.0, 7.0):
        if change is not None:
            setattr(state, name, change)
        expected = read(state)
        if change is not None:
            setattr(state, name, change)
        assert compiled(x).tolist() == [expected, 2 * expected]
        if hasattr(state, name):
            delattr(state, name)


def slot(state):
    try:
        return state.k
    except AttributeError:
        return -1.0


def slot_deleted(state):
    try:
        del state.k
    except AttributeError:
        return -1.0
    return 1.0


def test_an_attribute_of_a_class_or_module_is_found_later():
    state = type("Late", (), {})()
    module = types.ModuleType("late")
    on_class = hf.compile(lambda x: x * absent_in_class(state))
    on_module = hf.compile(lambda x: x * absent_attribute(module))
    x = hf.asarray(1.0)
    assert (on_class(x).item(), on_module(x).item()) == (-1.0, -1.0)
    type(state).late = 4.0
    module.late = 5.0
    assert (on_class(x).item(), on_module(x).item()) == (4.0, 5.0)


@pytest.mark.parametrize("read", [absent_global, absent_global_suppressed])
def test_a_global_that_was_not_there_is_found_later(read, monkeypatch):
    compiled = hf.compile(lambda x: x * read(None))
    x = hf.asarray(1.0)
    assert compiled(x).item() == -1.0
    monkeypatch.setitem(globals(), NAME, 4.0)
    assert compiled(x).item() == 4.0
    monkeypatch.delitem(globals(), NAME)
    assert compiled(x).item() == -1.0


def test_a_name_around_a_function_is_found_later():
    def around():
        def f(x):
            try:
                return x * late
            except NameError:
                return x - 1

        compiled = hf.compile(f)
        yield compiled(hf.asarray(3.0)).item()
        late = 5.0
        yield compiled(hf.asarray(3.0)).item()

    assert list(around()) == [2.0, 15.0]


def through_super(o):
    return o.value


def kept_through_super(o):
    return o.kept_by_base


def stored_by_setters(o):
    o.value = o.k + 0.5
    return o.k + len(o.log)


def stored_by_setattr(o):
    setattr(o, "value", getattr(o, "k") + 0.5)  # noqa: B009, B010 (the functions are what is tested)
    return getattr(o, "value") + getattr(o, "absent", 0.0) + hasattr(o, "unit")  # noqa: B009


def stored_as_object_does(o):
    object.__setattr__(o, "k", o.k + 0.5)
    o.__setattr__("extra", o.k * 2)
    return o.k + o.extra


def stored_and_told(o):
    o.value = o.k + 0.5
    o.other = 2.0
    return o.k + len(getattr(o, "stored", ()))


def asked_and_told(o):
    found = getattr(o, "nothing", 0.0) + (getattr(o, "failing", 1.0))
    return found + hasattr(o, "nothing") + getattr(o, "asked", 0)


PROGRAMS = [through_super, kept_through_super, stored_by_setters, stored_by_setattr, stored_as_object_does,
            stored_and_told, asked_and_told]


def run_over(make, read, f_of):
    """Return what calls give and leave behind, the state being changed between them."""
    o = make()
    f = f_of(lambda x: x * read(o))
    results = []
    for change in (None, None, 20.0, None, 30.0, None):
        if change is not None:
            vars(o)["k"] = change
            vars(o).pop("kept", None)
        results.append((f(hf.asarray(2.0)).item(), {name: repr(value) for name, value in vars(o).items()}))
    return results


@pytest.mark.parametrize("kind", [Middle, Derived, Telling])
@pytest.mark.parametrize("read", PROGRAMS)
def test_computed_attributes(read, kind):
    if read is kept_through_super and kind is not Derived:
        kind = Derived
    assert run_over(kind, read, hf.compile) == run_over(kind, read, lambda f: f)


def test_a_new_setter_is_seen(monkeypatch):
    o = Base()

    def f(x):
        o.value = 3.0
        return x * o.k

    compiled = hf.compile(f)
    assert compiled(hf.asarray(1.0)).item() == 3.0
    monkeypatch.setattr(Base, "value", property(lambda self: self.k, lambda self, value: vars(self).update(k=-value)))
    assert compiled(hf.asarray(1.0)).item() == -3.0


def test_a_descriptor_is_asked_as_often_as_eagerly():
    def counts(f_of):
        holder = type("Holder", (), {"a": Counted()})()

        def f(x):
            y = x * holder.a
            holder.a = holder.a + 1.0
            return y * getattr(holder, "a")  # noqa: B009 (the function is what is tested)

        f = f_of(f)
        found = vars(type(holder))["a"]
        return [(f(hf.asarray(1.0)).item(), found.reads, found.value) for _ in range(4)]

    assert counts(hf.compile) == counts(lambda f: f)


WRITES = {
    "list.__setitem__": lambda s: list.__setitem__(s.list, 0, s.list[0] + 1),
    "list.insert": lambda s: list.insert(s.list, 0, s.list[0] + 1),
    "list.sort": lambda s: (list.append(s.list, s.list[0] + 1), list.sort(s.list, key=lambda one: -one)),
    "dict.__setitem__": lambda s: dict.__setitem__(s.dict, "k", s.dict["k"] + 1),
    "dict.update": lambda s: dict.update(s.dict, k=s.dict["k"] + 1),
    "set.add": lambda s: set.add(s.set, len(s.set)),
    "deque.appendleft": lambda s: collections.deque.appendleft(s.deque, s.deque[0] + 1),
    "ndarray.fill": lambda s: np.ndarray.fill(s.array, s.array[0] + 1),
    "operator.setitem": lambda s: operator.setitem(s.list, 0, s.list[0] + 1),
    "operator.delitem": lambda s: operator.delitem(s.list, 0),
    "operator.iadd": lambda s: operator.iadd(s.list, [s.list[-1] + 1]),
    "operator.ior": lambda s: operator.ior(s.dict, {"k": s.dict["k"] + 1}),
    "map": lambda s: list(map(s.dict.__setitem__, ["k"], [s.dict["k"] + 1])),
    "reduce": lambda s: functools.reduce(s.dict.setdefault, [len(s.dict)], "k"),
    "type.__setattr__": lambda s: type.__setattr__(s.kind, "k", s.kind.k + 1),
    "object.__delattr__": lambda s: object.__delattr__(s, "late") if hasattr(s, "late") else setattr(s, "late", 1),
}


@pytest.mark.parametrize("way", WRITES)
def test_writes_by_methods_that_were_taken_from_classes(way):
    write = WRITES[way]

    def results(f_of):
        s = Namespace(list=[3.0, 2.0, 1.0, 0.0, 5.0, 6.0], dict={"k": 1.0}, set={-1}, deque=collections.deque([1.0]),
                      array=np.ones(2), kind=type("Kind", (), {"k": 1.0}))

        def f(x):
            total = s.list[0] + len(s.list) + sum(s.dict.values()) + len(s.set) + s.deque[0] + float(s.array.sum())
            y = x * (total + s.kind.k + hasattr(s, "late"))
            write(s)
            return y

        f = f_of(f)
        return [f(hf.asarray(1.0)).item() for _ in range(4)]

    assert results(hf.compile) == results(lambda f: f)


def test_whether_a_variable_is_trainable_is_read():
    w, v = hf.Variable(3.0), hf.Variable(4.0)
    o = Namespace(w=w)
    compiled = hf.compile(lambda x: x * (1.0 if o.w.trainable else 2.0) + sum(one.trainable for one in [v]))
    given = hf.compile(lambda w: w * (1.0 if w.trainable else 2.0))
    x = hf.asarray(1.0)
    assert (compiled(x).item(), given(w).item()) == (2.0, 3.0)
    w.trainable = False
    assert (compiled(x).item(), given(w).item()) == (3.0, 6.0)
    v.trainable = False
    assert compiled(x).item() == 2.0


def test_an_array_that_was_read_only_is_compared_again_when_it_is_not():
    data = np.arange(4, dtype=np.float32)
    data.flags.writeable = False
    compiled = hf.compile(lambda x: x * float(data.sum()))
    assert compiled(hf.asarray(1.0)).item() == 6.0
    data.flags.writeable = True
    data[0] = 10.0
    assert compiled(hf.asarray(1.0)).item() == 16.0


LOOKS = [lambda d, x: d[x], lambda d, x: d.get(x, 1.0), lambda d, x: 2.0 if x in d else 1.0]


@pytest.mark.parametrize("look", LOOKS)
def test_a_traced_tensor_is_no_key_of_a_dict_outside(look):
    x = hf.asarray([1.0, 2.0])
    table = {x: 3.0}
    with pytest.raises(TracedValueError, match="which tensor it is"):
        hf.compile(lambda x: x * look(table, x))(x)


def test_tensors_are_keys_of_what_the_function_makes():
    def f(x, y):
        table = {x: 2.0, y: 3.0}
        return x * table[x] + y * table.get(y, 0.0) + (1.0 if x in table else 0.0)

    x, y = hf.asarray(1.0), hf.asarray(2.0)
    assert hf.compile(f)(x, y).item() == f(x, y).item() == 9.0


class Pooled:
    """Objects that `__new__` makes, or finds."""

    made: list = []

    def __new__(cls, k):
        self = super().__new__(cls)
        cls.made.append(k)
        return self

    def __init__(self, k):
        self.k = k + len(self.made)


class Single:
    found = None

    def __new__(cls):
        if cls.found is None:
            cls.found = super().__new__(cls)
            cls.found.k = 0
        cls.found.k += 1
        return cls.found


class Named(str):
    count = 0
    __slots__ = ("k",)

    def __new__(cls, text, k):
        self = super().__new__(cls, text * 2)
        self.k = k
        return self

    def __init__(self, text, k):
        Named.count += len(self)


class Failure(Exception):
    count = 0

    def __init__(self, k):
        Failure.count += 1
        super().__init__(k)


def raised(x):
    try:
        raise Failure(3.0)
    except Failure as error:
        return x * error.args[0] + Failure.count


MADE = {
    "__new__": (lambda x: x * Pooled(2.0).k, lambda: (Pooled.made.clear(),)),
    "one object": (lambda x: x * Single().k, lambda: setattr(Single, "found", None)),
    "a subclass of str": (lambda x: x * len(Named("ab", 3.0)) * Named("c", 2.0).k + Named.count,
                          lambda: setattr(Named, "count", 0)),
    "an exception": (raised, lambda: setattr(Failure, "count", 0)),
}


@pytest.mark.parametrize("way", MADE)
def test_objects_that_a_users_new_makes(way):
    f, again = MADE[way]

    def results(function):
        again()
        return [function(hf.asarray(value)).item() for value in (1.0, 2.0, 1.0, 1.0)]

    assert results(hf.compile(f)) == results(f)


class Chosen:
    k = 2.0

    @functools.singledispatchmethod
    def of(self, value):
        return self.k

    @of.register
    def _(self, value: int):
        return self.k * 10.0


class Arraylike:
    k = 2.0

    def __array__(self, dtype=None, copy=None):
        return np.asarray([self.k], dtype=dtype or np.float32)


def of_outside(state):
    return {
        "jacobian": hf.jacobian(lambda x: x * state.k),
        "hessian": hf.hessian(lambda x: x * x * state.k),
        "vmap": hf.vmap(lambda x: x * state.k),
        "forward": lambda x: hf.jvp(lambda x: x * state.k, (x,), (x,))[1],
        "singledispatchmethod": lambda x: x * (state.chosen.of(1) + state.chosen.of("")),
        "array": lambda x: x * hf.asarray(state.array) + hf.stack([hf.asarray([state.array])]),
    }


@pytest.mark.parametrize("way", of_outside(None))
def test_what_is_made_outside_of_the_function_is_watched(way):
    state = Namespace(k=2.0, chosen=Chosen(), array=Arraylike())
    f = of_outside(state)[way]
    compiled = hf.compile(lambda x: f(x))
    x = hf.asarray([1.0, 3.0])
    for k in (2.0, 5.0, 5.0, 7.0):
        state.k = state.chosen.k = state.array.k = k
        assert compiled(x).tolist() == f(x).tolist()


STREAMS = {
    "write": lambda stream: stream.write("ab"),
    "print": lambda stream: print("ab", file=stream),
    "read": lambda stream: stream.seek(0) + len(stream.read(1)),
}


@pytest.mark.filterwarnings("ignore::hybridflow.core.errors.EffectWarning")
@pytest.mark.parametrize("way", STREAMS)
def test_a_stream_moves_at_every_call(way):
    def results(f_of):
        stream = io.StringIO("start")

        def f(x):
            STREAMS[way](stream)
            return x * (stream.tell() + len(stream.getvalue()))

        f = f_of(f)
        return [f(hf.asarray(1.0)).item() for _ in range(4)], stream.getvalue()

    assert results(hf.compile) == results(lambda f: f)
