"""`hf.name_scope`: what is computed in a block carries its name, gradients and nested graphs included."""

import asyncio
import threading

import pytest

import hybridflow as hf
from hybridflow.core.errors import ArgumentError

X = hf.asarray([1.0, 2.0])


@hf.name_scope("decorated")
def decorated(x):
    return hf.tanh(x)


def model(x):
    with hf.name_scope("encoder"), hf.name_scope("layer_1"):
        x = hf.tanh(x)
    with hf.name_scope("head"):
        return hf.sum(x * hf.exp(x))


def scopes(graph):
    return {node.op.name: node.scope_name for node in graph.nodes}


def test_scopes_nest_and_end():
    found = scopes(hf.compile(lambda x: hf.sin(model(x))).graph(X))
    assert found == {"tanh": "encoder/layer_1", "exp": "head", "multiply": "head", "sum": "head", "sin": ""}


def test_a_gradient_is_in_the_scope_of_what_it_differentiates():
    graph = hf.compile(hf.grad(model)).graph(X)
    assert {node.scope_name for node in graph.nodes if node.op.name != "constant"} == {
        "encoder/layer_1", "head", "gradient/encoder/layer_1", "gradient/head"
    }
    second = hf.compile(hf.grad(lambda x: hf.sum(hf.grad(model)(x)))).graph(X)
    assert "gradient/gradient/encoder/layer_1" in {node.scope_name for node in second.nodes}


def test_passes_keep_scopes_and_graphs_print_them():
    text = hf.compile(model).lower(X).as_text("optimized")
    assert "test_name_scope.py:21 encoder/layer_1" in text


def test_eager_recordings_have_scopes():
    x = hf.tensor([1.0, 2.0], requires_grad=True)
    assert "encoder/layer_1" in str(model(x).grad_fn.graph())


def test_bodies_of_loops_and_branches_have_scopes():
    def body(i, x):
        with hf.name_scope("step"):
            return i + 1, hf.sin(x)

    graph = hf.compile(lambda x: hf.while_loop(lambda i, _: i < 3, body, (hf.asarray(0), x))[1]).graph(X)
    assert {node.scope_name for node in graph.walk() if node.op.name == "sin"} == {"step"}


def test_a_decorated_function_is_a_scope_at_each_call():
    assert set(scopes(hf.compile(lambda x: decorated(decorated(x))).graph(X)).values()) == {"decorated"}


def test_an_exception_ends_the_scope():
    with pytest.raises(ZeroDivisionError), hf.name_scope("broken"):
        raise ZeroDivisionError
    assert scopes(hf.compile(hf.tanh).graph(X)) == {"tanh": ""}


def test_threads_and_tasks_have_scopes_of_their_own():
    graphs = {}

    def trace(name):
        graphs[name] = hf.compile(lambda x: hf.tanh(x)).graph(X)

    with hf.name_scope("outer"):
        thread = threading.Thread(target=trace, args=("thread",))
        thread.start()
        thread.join()

    async def task(name):
        with hf.name_scope(name):
            await asyncio.sleep(0)
            trace(name)

    async def tasks():
        await asyncio.gather(task("a"), task("b"))

    asyncio.run(tasks())
    assert {name: scopes(graph)["tanh"] for name, graph in graphs.items()} == {"thread": "", "a": "a", "b": "b"}


@pytest.mark.parametrize("name", ["", "/", "a//b", 3])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(ArgumentError, match="is not a name"), hf.name_scope(name):
        pass


def test_the_same_line_in_and_outside_of_a_scope():
    x = hf.asarray([1.0, 2.0])

    def double(value):
        return hf.tanh(value) + value

    with hf.GradientTape() as tape:
        tape.watch(x)
        outside = double(x)
        with hf.name_scope("inside"):
            inside = double(outside)
        after = double(inside)
    for tensor, name in ((outside, ""), (inside, "inside"), (after, "")):
        node = tensor._edge[0]
        assert (node.scope_name, node.inputs[0][0].scope_name) == (name, name)
        assert node.location.endswith(f"test_name_scope.py:{double.__code__.co_firstlineno + 1}")


def test_what_is_computed_between_other_files_is_on_the_users_line():
    scale, w = hf.LossScale(2.0), hf.Variable([1.0, 2.0])

    @hf.compile
    def step(x):
        with hf.GradientTape() as tape:
            loss = scale.scale({"loss": hf.sum(x * w)})["loss"]
        gradients = hf.clip_by_global_norm(scale.unscale({"w": tape.gradient(loss, w)}), 1.0)
        scale.step(lambda found: w.assign_sub(found[0]["w"]), gradients)

    places = {node.location.rpartition(":")[0] for node in step.graph(hf.ones(2)).nodes if node.location is not None}
    assert places == {__file__}
