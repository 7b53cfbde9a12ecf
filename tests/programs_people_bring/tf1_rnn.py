"""A recurrent network that repeats a row of bits with a delay, unrolled over time."""

import numpy as np

import hybridflow.compat.v1 as tf

num_steps, state_size, batch_size, learning_rate = 6, 8, 40, 0.1
np.random.seed(0)
tf.set_random_seed(0)


def batch():
    bits = np.random.choice(2, size=(batch_size, num_steps))
    echo = np.roll(bits, 1, axis=1)
    echo[:, 0] = 0
    return bits, echo


x = tf.placeholder(tf.int32, [batch_size, num_steps], name="input_placeholder")
y = tf.placeholder(tf.int32, [batch_size, num_steps], name="labels_placeholder")
init_state = tf.zeros([batch_size, state_size])
rnn_inputs = tf.one_hot(x, 2)

cell = tf.nn.rnn_cell.BasicRNNCell(state_size)
rnn_outputs, final_state = tf.nn.dynamic_rnn(cell, rnn_inputs, initial_state=init_state)

with tf.variable_scope("softmax"):
    W = tf.get_variable("W", [state_size, 2])
    b = tf.get_variable("b", [2], initializer=tf.constant_initializer(0.0))
logits = tf.reshape(tf.matmul(tf.reshape(rnn_outputs, [-1, state_size]), W) + b, [batch_size, num_steps, 2])
predictions = tf.nn.softmax(logits)
losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
total_loss = tf.reduce_mean(losses)
train_step = tf.train.AdagradOptimizer(learning_rate).minimize(total_loss)

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    training_losses = []
    for _ in range(150):
        bits, echo = batch()
        loss, _ = sess.run([total_loss, train_step], feed_dict={x: bits, y: echo})
        training_losses.append(loss)
    bits, echo = batch()
    probabilities, state = sess.run([predictions, final_state], feed_dict={x: bits, y: echo})
    weights = {v.name: sess.run(v) for v in tf.trainable_variables()}
print("mean loss of the last steps:", np.mean(training_losses[-20:]))
