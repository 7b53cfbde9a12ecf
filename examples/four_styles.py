"""The same small model trained in four styles: a tape, define-by-run, define-and-run and functions."""

import numpy as np

import hybridflow as hf

x = hf.asarray([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
goal = hf.asarray([1.0, -1.0, 0.5])


def loss_of(w, x=x, goal=goal):
    return ((hf.tanh(x @ w) - goal) ** 2).mean()


def by_tape():  # what happens in the block is recorded
    w = hf.Variable([0.1, -0.2])
    for _ in range(3):
        with hf.GradientTape() as tape:
            loss = loss_of(w)
        w.assign_sub(0.5 * tape.gradient(loss, w))
    return w.numpy()


def by_backward():  # define-by-run: leaves ask for their gradients
    w = hf.Variable([0.1, -0.2], requires_grad=True)
    for _ in range(3):
        w.zero_grad()
        loss_of(w).backward()
        w.assign_sub(0.5 * w.grad)
    return w.numpy()


def by_session():  # define-and-run: the graph first, its values later
    w = hf.Variable([0.1, -0.2])
    with hf.Graph() as graph:
        a, b = hf.placeholder((None, 2), name="a"), hf.placeholder((None,), name="b")
        (slope,) = graph.gradients(loss_of(w, a, b), [w])
        step = w.assign_sub(0.5 * slope)
    with hf.Session(graph) as session:
        for _ in range(3):
            session.run(step, feed={a: x, b: goal})
    return w.numpy()


def by_functions():  # no state at all
    w = hf.asarray([0.1, -0.2])
    for _ in range(3):
        w = w - 0.5 * hf.grad(loss_of)(w)
    return w.numpy()


found = [style() for style in (by_tape, by_backward, by_session, by_functions)]
assert all(np.allclose(one, found[0], rtol=1e-6) for one in found)
print([round(float(one), 4) for one in found[0]])
