"""What converted control flow cannot do raises at its line and says what, where and what to do."""

from __future__ import annotations

import itertools
import warnings
from contextlib import suppress

import pytest

import hybridflow as hf
from hybridflow.core.errors import (
    CheckError,
    DTypeError,
    ExportError,
    MutationError,
    ShapeError,
    TracedValueError,
    TraceError,
)

X = hf.asarray(2.0)


def line(function, offset):
    return function.__code__.co_firstlineno + offset


def test_a_variable_set_in_one_branch_only():
    def f(x):
        if x > 0:
            _ = None
            y = x * 2
        return y

    places = rf"{__file__}:{line(f, 1)} is true(?s:.*):{line(f, 3)} if true"
    with pytest.raises(TraceError, match=rf"'y' has a value if the condition at {places}"):
        hf.compile(f)(X)


def test_a_variable_set_in_the_other_branch_only():
    def f(x):
        if x > 0:
            pass
        else:
            y = x
        return y + 1

    with pytest.raises(TraceError, match=r"'y' has a value if the condition at .* is false, and none if it is true"):
        hf.compile(f)(X)


def test_a_variable_without_a_value_may_stay_unread_through_other_branches():
    def f(x):
        if x > 0:
            if x > 1:
                y = x
        elif x > -1:
            pass
        if x < 5:
            x = x + 1
            if x < 0:
                y = x * 2
        try:
            return x
        finally:
            if x is None:
                print(y)

    assert hf.compile(f)(X).item() == 3.0


def test_shapes_that_do_not_meet():
    def f(x):
        if x > 0:
            y = hf.zeros((2,))
        else:
            y = hf.zeros((3,))
        return y

    with pytest.raises(ShapeError, match=r"'y' has shape \(2,\) if the condition at .* and \(3,\) if it is false"):
        hf.compile(f)(X)


def test_dtypes_that_do_not_meet():
    def f(x):
        if x > 0:
            y = hf.zeros(())
        else:
            y = hf.zeros((), dtype=hf.int32)
        return y

    with pytest.raises(DTypeError, match=rf"'y' is float32 .*int32 if it is false\n.*:{line(f, 2)}; .*:{line(f, 4)}"):
        hf.compile(f)(X)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16", "float32", "complex64"])
@pytest.mark.parametrize("number", [True, 3, 0.5, 1j])
def test_numbers_that_meet_a_tensor_keep_its_dtype_or_are_refused(dtype: str, number: complex):
    x = hf.ones((), dtype=dtype)
    wide = "bifc".index(dtype.lstrip("u")[0]) < "bifc".index(type(number).__name__[0])
    for f in (lambda x: x if x != 0 else number, lambda x: number if x == 0 else x):
        if wide:
            with pytest.raises(DTypeError, match=rf"a Python number if .*{dtype} if|{dtype} if .*a Python number if"):
                hf.compile(f)(x)
        else:
            assert hf.compile(f)(x).dtype == dtype


def test_structures_that_do_not_meet():
    def f(x):
        y = (x, x) if x > 0 else [x]
        return y

    with pytest.raises(TraceError, match=r"the value of the expression has another structure"):
        hf.compile(f)(X)

    def g(x):
        if x > 0:
            return x

    with pytest.raises(TraceError, match=r"the function's result has another structure.*\n.*None if false"):
        hf.compile(g)(X)


def test_python_objects_that_do_not_meet():
    def f(x):
        mode = "up" if x > 0 else "down"
        return x if mode == "up" else -x

    with pytest.raises(TraceError, match=r"is not the same Python object .*\n.*'up' if true, 'down' if false"):
        hf.compile(f)(X)


def test_a_loop_variable_that_changes_its_shape():
    def f(x):
        y = hf.zeros((1,))
        while x < 10:
            y = hf.concat([y, y])
            x = x + 1
        return y

    with pytest.raises(ShapeError, match=rf"'y' changes its shape in the loop at .*:{line(f, 2)}: \(1,\) and .*\(2,\)"):
        hf.compile(f)(X)


def test_a_loop_variable_that_changes_its_dtype():
    def f(x):
        y = hf.zeros((), dtype=hf.int32)
        while x < 10:
            y = y + 0.5
            x = x + 1
        return y

    with pytest.raises(DTypeError, match=r"variable 'y' is int32 before and float32 after a step of the loop"):
        hf.compile(f)(X)


def test_a_loop_variable_that_changes_its_structure():
    def f(x):
        y = None
        while x < 10:
            y = x
            x = x + 1
        return y

    with pytest.raises(TraceError, match=r"variable 'y' changes its structure in the loop"):
        hf.compile(f)(X)


def test_a_name_first_set_in_a_loop_without_steps():
    def f(x):
        while x < 10:
            y = x * 2
            x = x + 5
        return y

    compiled = hf.compile(f)
    assert compiled(X).item() == f(X).item() == 14.0
    with pytest.raises(TraceError, match=rf"'y' is set by the loop at {__file__}:{line(f, 1)}, which made no"):
        compiled(hf.asarray(20.0))
    assert compiled(X).item() == 14.0


def test_a_python_integer_that_leaves_its_range():
    def f(x):
        n, m = 1, 0
        while x > 0:
            n = n * 3 - m
            m += 1
            x = x - 1
        return n

    compiled = hf.compile(f)
    for steps in (5, 30):
        assert compiled(hf.asarray(steps)) == f(hf.asarray(steps))
    with pytest.raises(OverflowError, match=rf"larger than 2\*\*62(.|\n)*{line(f, 3)}"):
        compiled(hf.asarray(60))
    assert compiled(hf.asarray(19)) == f(hf.asarray(19))


def factorial(n):
    if n <= 1:
        return n * 0 + 1
    return n * factorial(n - 1)


def power(x, n):
    return 1.0 if n == 0 else x * power(x, n - 1)


def test_recursion_on_tensors_has_a_bound():
    compiled = hf.compile(factorial, max_depth=6)
    for n in (1, 4, 6):
        assert compiled(hf.asarray(n)).item() == factorial(n)
    with pytest.raises(TraceError, match=r"(?s)the branch at .* is inside of itself more than 6 times.*max_depth"):
        compiled(hf.asarray(12))
    assert hf.compile(lambda x, n: power(x, n), max_depth=5)(X, hf.asarray(4)).item() == 16.0
    slope = hf.compile(hf.grad(lambda x: power(x, hf.asarray(3))), max_depth=5)(X)
    assert slope.item() == 12.0
    with pytest.raises(ValueError, match="max_depth=0, which is less than 1"):
        hf.compile(factorial, max_depth=0)


def test_conditions_of_several_elements():
    def f(x):
        if x:
            return x
        return -x

    with pytest.raises(ShapeError, match=r"bool: needs exactly one element, there are 2\n.*\n.*hf.all or hf.any"):
        hf.compile(f)(hf.asarray([1.0, 2.0]))


def test_effects_of_a_branch_on_a_list_of_the_function():
    def f(x):
        seen = []
        if x > 0:
            seen.append(x)
        return seen

    with pytest.raises(MutationError, match=rf"(?s)list.*branch or loop.*{__file__}:{line(f, 3)}"):
        hf.compile(f)(X)


def test_effects_of_a_loop_on_a_dict_of_the_function():
    def f(x):
        seen = {}
        while x > 0:
            seen["x"] = x
            x = x - 1
        return seen

    with pytest.raises(MutationError, match=r"(?s)dict.*branch or loop"):
        hf.compile(f)(X)


def test_effects_of_a_branch_on_an_object_of_the_function():
    class Box:
        pass

    def f(x):
        box = Box()
        box.value = x
        if x > 0:
            box.value = -x
        return box.value

    with pytest.raises(MutationError, match=r"(?s)Box.*branch or loop"):
        hf.compile(f)(X)


def test_what_a_branch_makes_itself_it_may_change():
    def f(x):
        if x > 0:
            seen = []
            seen.append(x)
            seen[0] = seen[0] * 2
            total = seen.pop()
        else:
            total = x
        return total

    assert hf.compile(f)(X).item() == 4.0


def test_an_endless_iterator():
    def counting():
        n = 0
        while True:
            n += 1
            yield n

    def f(x):
        for n in counting():
            if x * n > 100:
                break
        return x

    from hybridflow.convert import runtime

    before, runtime.ENDLESS = runtime.ENDLESS, 5
    try:
        with pytest.raises(TraceError, match=r"for: an iterator of unknown length, which only a tensor could stop"):
            hf.compile(f)(X)
    finally:
        runtime.ENDLESS = before


def test_conditions_that_stay_python():
    def several(x):
        for i in range(3):
            if x > i:
                return
            yield i

    def asked_for_by_c(x):
        return [*itertools.takewhile(lambda one: one > x, [x])]

    for f in (lambda x: list(several(x)), lambda x: x > 0 and (y := x) > y, asked_for_by_c):
        with pytest.raises(TracedValueError, match=r"Conditions of a yield, of a generator's .* stay Python's"):
            hf.compile(f)(X)


def test_a_filter_on_tensors_keeps_an_unknown_number_of_items():
    def listed(x):
        return [i for i in range(3) if x > i]

    def given(x):
        return list(i for i in range(3) if x > i)

    def shadowed(x, sum=list):
        return sum(i for i in range(3) if x > i)

    for f in (listed, given, shadowed, lambda x: {i for i in range(3) if x > i}):
        with pytest.raises(TraceError, match=r"(?s)comprehension: which items it keeps .*:\d+\n.*hf.where, or .* sum"):
            hf.compile(f)(X)


def test_a_range_up_to_a_tensor_is_for_loops_only():
    with pytest.raises(TraceError, match=r"range: its length is a tensor"):
        hf.compile(lambda n: list(range(n)))(hf.asarray(3))


def test_checks_of_a_failed_call_void_its_writes():
    v = hf.Variable(1.0)

    @hf.compile
    def f(x):
        v.assign_add(x)
        if x > 10:
            raise ValueError("too large")
        return v.read()

    assert f(X).item() == 3.0
    with pytest.raises(ValueError, match=r"too large"):
        f(hf.asarray(20.0))
    assert v.item() == 3.0


def test_prints_of_tensors_run_every_call(capsys):
    @hf.compile
    def f(x):
        print("traced")
        if x > 0:
            print("positive", x)
        return x

    for value in (1.0, 2.0, -1.0):
        f(hf.asarray(value))
    hf.synchronize()
    out = capsys.readouterr().out
    assert out.count("traced") == 1
    assert out.count("positive") == 2


@pytest.mark.asserts
def test_exceptions_that_depend_on_tensors_are_not_handled_around():
    def of_python(x):
        try:
            y = {}["k"] if x > 0 else x
        except KeyError:
            y = x * 2
        return y

    def in_a_loop(x):
        with suppress(LookupError):
            while x > 0:
                x = {}[x - 1]
        return x

    for f in (of_python, in_a_loop):
        with pytest.raises(TraceError, match=r"except: whether \w+ is raised at .*:\d+ depends on a tensor"):
            hf.compile(f)(X)

    def raised(x):
        try:
            if x > 0:
                raise ValueError("a")
        except (KeyError, ValueError):
            x = x * 10
        return x

    def asserted(x):
        try:
            assert x > 0
        except:  # noqa: E722
            x = x * 10
        return x

    def suppressed(x):
        with suppress(ValueError):
            if x > 0:
                raise ValueError("a")
            x = x * 2
        return x

    def inside(x):
        if x > 0:
            try:
                raise ValueError("a")
            except ValueError:
                x = x * 10
        try:
            if x > 100:
                raise OSError("b")
        except KeyError:
            x = x * 2
        return x

    for f in (raised, asserted, suppressed, inside):
        compiled = hf.compile(f)
        assert [compiled(one).item() for one in (X, -X, X)] == [f(one).item() for one in (X, -X, X)]
        assert compiled.trace_count == 1


def test_what_goes_on_after_an_exception_is_not_exported(tmp_path):
    def f(x):
        try:
            hf.debugging.check(x > 0, "positive")
        except CheckError:
            x = x * 10
        return x

    for save in (hf.export.save, hf.export.onnx):
        with pytest.raises(ExportError, match=r"predict may go on where CheckError is raised at .*test_convert_errors"):
            save(tmp_path / "f", f, hf.TensorSpec([]))
    assert not [*tmp_path.iterdir()]


def test_calls_that_leave_a_trace_by_an_exception_again_and_again_are_warned_of():
    def f(x):
        try:
            if x > 0:
                raise ValueError("a")
        except ValueError:
            x = x * 10
        return x

    compiled = hf.compile(f)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(5):
            compiled(X)
    (warning,) = seen
    assert warning.category is hf.RetraceWarning
    assert "f: 3 calls have left the trace by an exception that the code may handle" in str(warning.message)
    assert f"ValueError at {__file__}:" in str(warning.message)


def test_a_variable_without_a_value_is_told_as_in_eager_code():
    def deleted(x):
        for _ in range(2):
            y = x
            del y
            try:
                x = x + y  # noqa: F821
            except UnboundLocalError as error:
                x = x * (2 if "'y'" in str(error) else 3)
        return x

    def in_a_loop(x):
        while hf.sum(x) < 5:
            try:
                x = x + y
            except NameError as error:
                x = x * (2 if type(error) is UnboundLocalError else 3)
            break
        else:
            y = 1  # noqa: F841
        return x

    def of_another(x):
        def outer():
            def inner():
                return late

            return inner()
            late = 1

        try:
            outer()
        except NameError as error:
            return x * len(str(error)) * (2 if error.__context__ is None else 3)

    def unhandled(x):
        if x.shape[0] == 2:
            y  # noqa: B018, F821
        y = 3
        return x * y

    with pytest.raises(UnboundLocalError, match="cannot access local variable 'y'"):
        hf.compile(unhandled)(hf.ones(2))
    for function in (deleted, in_a_loop, of_another):
        assert hf.compile(function)(hf.ones(2)).tolist() == function(hf.ones(2)).tolist()


def test_an_error_of_a_branch_keeps_its_class_whatever_it_holds():
    class TooLarge(Exception):
        def __init__(self, value):
            super().__init__(value)
            self.value = value

    def f(x, text):
        if hf.sum(x) > 1.0:
            raise TooLarge(x) if text is None else ValueError(f"{text} {x}", x)
        return x

    for text, kind in ((None, TooLarge), ("loss", ValueError)):
        with pytest.raises(kind, match=r"Tensor\(traced f32\[2\]\)"):
            hf.compile(f)(hf.ones(2), text).tolist()


def test_locals_are_those_of_the_function_in_its_branches_and_loops():
    def f(x, n=2, again=True):
        y = 1
        if x.shape[0]:
            n += len(locals()) + ("y" in vars()) + len(dir())
        for _ in range(2):
            n += len(locals())
        return x * n + (f(x, n, False) if again and y else 0)

    assert hf.compile(f)(hf.ones(1)).tolist() == f(hf.ones(1)).tolist()
