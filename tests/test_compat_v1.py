"""The bridge for programs of TensorFlow 1: what its parts mean, by hand."""

from __future__ import annotations

import numpy as np
import pytest

import hybridflow as hf
import hybridflow.compat.v1 as tf
from hybridflow.core.errors import ForeignNameError


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as made:
        yield made


def initialized():
    sess = tf.Session()
    sess.run(tf.global_variables_initializer())
    return sess


def test_runs_return_arrays_in_the_structure_of_the_fetches(graph):
    x = tf.placeholder("float", [None, 2], name="x")
    y = x * 2 + np.array([1.0, 2.0], np.float32)
    total = tf.reduce_sum(y, name="total")
    sess = tf.Session()
    found = sess.run({"y": y, "rest": [(total,), total.op]}, {x: [[1, 2]]})
    assert found["y"].tolist() == [[3.0, 6.0]]
    assert type(found["y"]) is np.ndarray
    assert found["y"].flags.writeable
    assert found["rest"] == [(np.float32(9.0),), None]
    assert sess.run("total:0", {"x:0": np.zeros((3, 2))}) == 9.0
    assert (y.name, x.get_shape().as_list(), x.shape[1].value, x.shape[0].value) == ("add:0", [None, 2], 2, None)
    with pytest.raises(KeyError, match="no tensor 'nothing:0'"):
        graph.get_tensor_by_name("nothing:0")
    for wrong, text in (({y.op: 1}, "has an Operation as a key"), ({x: y}, "a tensor of the graph is fed for x:0")):
        with pytest.raises(TypeError, match=text):
            sess.run(y, wrong)
    with pytest.raises(TypeError, match="a fetch is an int"):
        sess.run(3)
    with pytest.raises(ValueError, match="was not fed"):
        sess.run(y)
    for read in (bool, list, len, np.asarray):
        with pytest.raises(TypeError, match=r"add:0: it"):
            read(y)


def test_reading_before_the_initializer_is_an_error_in_every_session():
    w = tf.Variable(tf.constant([1.0, 2.0]), name="w")
    double = w.assign(w * 2)
    first, second = tf.Session(), tf.Session()
    with pytest.raises(ValueError, match="'w' has no value in this session yet"):
        first.run(w)
    with pytest.raises(ValueError, match="'w' has no value in this session yet"):
        first.run(double)
    first.run(w.initializer)
    assert first.run(double).tolist() == [2.0, 4.0]
    with pytest.raises(ValueError, match="'w' has no value in this session yet"):
        second.run(w + 1.0)
    second.run(tf.global_variables_initializer())
    assert first.run(double).tolist() == [4.0, 8.0]  # each session has its own values
    assert second.run(w).tolist() == [1.0, 2.0]
    w.load([7.0, 8.0], second)
    assert [s.run(w).tolist() for s in (first, second)] == [[4.0, 8.0], [7.0, 8.0]]
    with pytest.raises(ValueError, match="does not fit Variable 'w'"):
        w.load([7.0], second)


def test_what_a_run_needs_is_assigned_and_control_dependencies_order_it():
    v = tf.Variable(1.0)
    more = v.assign_add(1.0)
    twice = more * 2.0
    with tf.control_dependencies([more]):
        after, again, nothing = v + 0.0, v.assign_add(10.0), tf.no_op()
    other = tf.assign(v, 100.0)
    sess = initialized()
    assert (sess.run(v * 1.0), sess.run(twice), sess.run(v)) == (1.0, 4.0, 2.0)
    assert (sess.run(after), sess.run(v)) == (3.0, 3.0)
    assert (sess.run(again), sess.run(v)) == (14.0, 14.0)
    assert sess.run(nothing) is None
    assert sess.run(v) == 15.0
    assert sess.run([v * 1.0, other]) == [15.0, 100.0]
    with pytest.raises(ValueError, match="is assigned twice, in no order"):
        sess.run(tf.group(other, more))
    assert sess.run(v) == 100.0


def test_scopes_name_and_share_variables():
    with tf.variable_scope("net"):
        w = tf.get_variable("w", [2, 3])
        with tf.name_scope("inner"):
            assert tf.get_variable("b", [3], initializer=tf.zeros_initializer()).name == "net/b:0"
            assert tf.constant(1.0, name="c").name == "net/inner/c:0"
    with tf.variable_scope("net", reuse=True):
        assert tf.get_variable("w", [2, 3]) is w
        with pytest.raises(ValueError, match="no Variable 'net/other' to reuse"):
            tf.get_variable("other", [1])
    with tf.variable_scope("net", reuse=tf.AUTO_REUSE):
        assert tf.get_variable("w", [2, 3]) is w
        assert tf.get_variable("new", [1]).name == "net/new:0"
        with pytest.raises(ValueError, match=r"'net/w' is f32\[2,3\], asked for is float32 of shape"):
            tf.get_variable("w", [3, 2])
    with tf.variable_scope("net"), pytest.raises(ValueError, match="there is a Variable 'net/w' already"):
        tf.get_variable("w", [2, 3])
    assert [v.name for v in tf.trainable_variables("net")] == ["net/w:0", "net/b:0", "net/new:0"]
    assert (tf.Variable(0.0).name, tf.Variable(0.0).name) == ("Variable:0", "Variable_1:0")
    one, two = (tf.layers.dense(tf.zeros([1, 2]), 2) for _ in range(2))
    assert [v.name for v in tf.global_variables("dense_1")] == ["dense_1/kernel:0", "dense_1/bias:0"]
    assert initialized().run([one, two])[0].tolist() == [[0.0, 0.0]]


def _adam(w, grads):
    m = v = 0.0
    for t, g in enumerate(grads, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 0.5)
    return w


def _momentum(w, grads, nesterov):
    a = 0.0
    for g in grads:
        a = 0.9 * a + g
        w = w - 0.1 * (g + 0.9 * a if nesterov else a)
    return w


def _adagrad(w, grads):
    a = 0.1
    for g in grads:
        a = a + g * g
        w = w - 0.1 * g / np.sqrt(a)
    return w


def _rmsprop(w, grads, centered):
    ms, mg, mom = 1.0, 0.0, 0.0
    for g in grads:
        ms, mg = 0.8 * ms + 0.2 * g * g, 0.8 * mg + 0.2 * g
        mom = 0.5 * mom + 0.1 * g / np.sqrt(ms - (mg * mg if centered else 0) + 0.01)
        w = w - mom
    return w


@pytest.mark.parametrize(
    ("make", "by_hand"),
    [
        (lambda: tf.train.GradientDescentOptimizer(0.1), lambda w, gs: w - 0.1 * sum(gs)),
        (lambda: tf.train.AdamOptimizer(0.1, epsilon=0.5), _adam),
        (lambda: tf.train.MomentumOptimizer(0.1, 0.9), lambda w, gs: _momentum(w, gs, False)),
        (lambda: tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True), lambda w, gs: _momentum(w, gs, True)),
        (lambda: tf.train.AdagradOptimizer(0.1), _adagrad),
        (lambda: tf.train.RMSPropOptimizer(0.1, 0.8, 0.5, 0.01), lambda w, gs: _rmsprop(w, gs, False)),
        (lambda: tf.train.RMSPropOptimizer(0.1, 0.8, 0.5, 0.01, centered=True), lambda w, gs: _rmsprop(w, gs, True)),
    ],
)
def test_optimizers_follow_tensorflows_formulas(make, by_hand):
    w, c = tf.Variable([1.0, -2.0]), tf.placeholder(tf.float32, [2])
    steps = tf.train.get_or_create_global_step()
    train = make().minimize(tf.reduce_sum(w * c), global_step=steps)
    sess = initialized()
    slopes = [np.array(one) for one in ([0.5, 2.0], [-1.0, 0.25], [3.0, 1.0])]
    for one in slopes:
        sess.run(train, {c: one})
    np.testing.assert_allclose(sess.run(w), by_hand(np.array([1.0, -2.0]), slopes), rtol=1e-5)
    assert sess.run(steps) == 3


def test_gradients_are_taken_clipped_and_applied():
    x, y, unused = tf.Variable(3.0), tf.Variable(4.0), tf.Variable(1.0)
    loss = x * x + 2.0 * y
    assert tf.gradients(loss, [unused]) == [None]
    opt = tf.train.GradientDescentOptimizer(1.0)
    pairs = opt.compute_gradients(loss)
    clipped, norm = tf.clip_by_global_norm([g for g, _ in pairs], 1.0)
    train = opt.apply_gradients(zip(clipped, [v for _, v in pairs], strict=True))
    sess = initialized()
    np.testing.assert_allclose(sess.run(norm), np.sqrt(40), rtol=1e-6)
    sess.run(train)
    np.testing.assert_allclose(sess.run([x, y]), [3 - 6 / np.sqrt(40), 4 - 2 / np.sqrt(40)], rtol=1e-6)
    (second,) = tf.gradients(tf.gradients(x * x * x, x)[0], x)
    np.testing.assert_allclose(sess.run(second), 6 * sess.run(x), rtol=1e-6)
    with pytest.raises(ValueError, match="no Variable has a gradient"):
        opt.minimize(loss, var_list=[unused])


def test_cells_are_those_of_the_equations():
    rng = np.random.default_rng(0)
    data = rng.standard_normal((2, 3, 4)).astype(np.float32)
    x = tf.placeholder(tf.float32, [None, 3, 4])
    outputs, state = tf.nn.dynamic_rnn(tf.nn.rnn_cell.BasicLSTMCell(5), x, dtype=tf.float32)
    gru, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(5), x, dtype=tf.float32, scope="gru")
    sess = initialized()
    kernel, bias, gates, gates_bias, candidate, candidate_bias = sess.run(tf.trainable_variables())
    found, last, found_gru = sess.run([outputs, state, gru], {x: data})
    sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    c = h = s = np.zeros((2, 5))
    for t in range(3):
        i, j, f, o = np.split(np.concatenate([data[:, t], h], 1) @ kernel + bias, 4, axis=1)
        c = c * sigmoid(f + 1.0) + sigmoid(i) * np.tanh(j)
        h = np.tanh(c) * sigmoid(o)
        np.testing.assert_allclose(found[:, t], h, rtol=1e-4, atol=1e-6)
        r, u = np.split(sigmoid(np.concatenate([data[:, t], s], 1) @ gates + gates_bias), 2, axis=1)
        s = u * s + (1 - u) * np.tanh(np.concatenate([data[:, t], r * s], 1) @ candidate + candidate_bias)
        np.testing.assert_allclose(found_gru[:, t], s, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(last.c, c, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="all sequences have the length"):
        tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(5), tf.placeholder(tf.float32, [2, None, 4]))


def test_images_are_channels_last():
    rng = np.random.default_rng(1)
    image, kernel = rng.standard_normal((1, 5, 4, 2)), rng.standard_normal((3, 3, 2, 3))
    x = tf.constant(image, dtype=tf.float32)
    y = tf.nn.conv2d(x, tf.constant(kernel, tf.float32), strides=[1, 1, 1, 1], padding="VALID")
    pooled = tf.nn.max_pool(x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")
    convolved, largest, same = tf.Session().run([y, pooled, tf.layers.flatten(x)])
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(1, 2))
    np.testing.assert_allclose(convolved, np.einsum("nhwcij,ijco->nhwo", windows, kernel), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(largest[0, 0, 0], image[0, :2, :2].max((0, 1)), rtol=1e-6)
    np.testing.assert_allclose(same, image.reshape(1, -1), rtol=1e-6)


def test_branches_and_loops():
    x, w = tf.placeholder(tf.float32, []), tf.Variable(3.0)
    y = tf.cond(x > 0.0, lambda: x * w, lambda: x - w)
    _, total = tf.while_loop(lambda i, s: i < 4, lambda i, s: (i + 1, s * x), [tf.constant(0), tf.constant(1.0)],
                             maximum_iterations=10)
    slope = tf.gradients(total, x)[0]
    sess = initialized()
    assert (sess.run(y, {x: 2.0}), sess.run(y, {x: -2.0})) == (6.0, -5.0)
    assert sess.run([total, slope], {x: 2.0}) == [16.0, 32.0]


def test_random_numbers_are_new_in_every_run_and_repeat_by_seed():
    numbers = tf.random_normal([3])
    dropped = tf.nn.dropout(tf.ones([1000]), keep_prob=tf.constant(0.25))
    sess = tf.Session()
    tf.set_random_seed(3)
    first, second = sess.run(numbers), sess.run(numbers)
    assert not np.array_equal(first, second)
    tf.set_random_seed(3)
    np.testing.assert_array_equal(sess.run(numbers), first)
    found = sess.run(dropped)
    assert set(np.unique(found)) == {0.0, 4.0}
    assert 150 < np.count_nonzero(found) < 350


def test_a_checkpoint_fits_or_changes_nothing(tmp_path):
    a, b = tf.Variable(1.0, name="a"), tf.Variable([2.0], name="b")
    sess = initialized()
    path = tf.train.Saver({"a": a}).save(sess, tmp_path / "model")
    a.load(5.0, sess)
    with pytest.raises(ValueError, match="the checkpoint lacks b"):
        tf.train.Saver().restore(sess, path)
    assert sess.run(a) == 5.0
    fresh = tf.Session()
    tf.train.Saver([a]).restore(fresh, path)
    assert fresh.run(a) == 1.0
    with pytest.raises(ValueError, match="'b' has no value"):
        fresh.run(b)
    with pytest.raises(OSError, match="nowhere"):
        tf.train.Saver().restore(sess, tmp_path / "nowhere")


def test_graphs_are_apart_and_the_default_one_can_be_begun_anew(graph):
    x = tf.constant(1.0)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="is of another graph than the default one"):
        x + 1.0
    with pytest.raises(RuntimeError, match=r"a graph's as_default\(\) block is open"):
        tf.reset_default_graph()
    assert tf.get_default_graph() is graph
    with pytest.raises(ValueError, match="there is no default session"):
        x.eval()
    with tf.Session().as_default():
        assert x.eval() == 1.0
    with tf.Session() as sess:
        assert (x + 1.0).eval() == 2.0
    with pytest.raises(RuntimeError, match="it was closed"):
        sess.run(x)
    assert hf.asarray(1.0).item() == 1.0  # eager code goes on beside it


def test_absent_names_say_what_to_write():
    for name, text in (("contrib", "tf.layers"), ("data", "hf.data.Batches"), ("estimator", "hf.train.fit")):
        with pytest.raises(ForeignNameError, match=text):
            getattr(tf, name)
    with pytest.raises(ForeignNameError, match="prefetch"):
        tf.train.Coordinator  # noqa: B018
    with pytest.raises(ForeignNameError, match=r"hybridflow\.compat\.v1"):
        hf.global_variables_initializer  # noqa: B018
