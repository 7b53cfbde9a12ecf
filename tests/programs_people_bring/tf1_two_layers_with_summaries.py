"""A network of two layers with dropout, a falling rate, summaries for TensorBoard and checkpoints."""

import os
import tempfile

import numpy as np
from sklearn.datasets import load_digits

import hybridflow.compat.v1 as tf

log_dir = tempfile.mkdtemp()
digits = load_digits()
images, classes = (digits.data / 16.0).astype(np.float32), digits.target
tf.set_random_seed(1)


def variable_summaries(var):
    with tf.name_scope("summaries"):
        mean = tf.reduce_mean(var)
        tf.summary.scalar("mean", mean)
        tf.summary.histogram("histogram", var)


def nn_layer(input_tensor, input_dim, output_dim, layer_name, act=tf.nn.relu):
    with tf.variable_scope(layer_name):
        start = tf.truncated_normal_initializer(stddev=0.1)
        weights = tf.get_variable("weights", [input_dim, output_dim], initializer=start)
        biases = tf.get_variable("biases", [output_dim], initializer=tf.constant_initializer(0.1))
        variable_summaries(weights)
        return act(tf.matmul(input_tensor, weights) + biases, name="activation")


with tf.name_scope("input"):
    x = tf.placeholder(tf.float32, [None, 64], name="x-input")
    y_ = tf.placeholder(tf.int64, [None], name="y-input")
keep_prob = tf.placeholder(tf.float32, [])
hidden1 = nn_layer(x, 64, 50, "layer1")
with tf.name_scope("dropout"):
    dropped = tf.nn.dropout(hidden1, keep_prob)
y = nn_layer(dropped, 50, 10, "layer2", act=tf.identity)

cross_entropy = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y_, logits=y))
tf.summary.scalar("cross_entropy", cross_entropy)
global_step = tf.Variable(0, name="global_step", trainable=False)
rate = tf.train.exponential_decay(0.01, global_step, 50, 0.5, staircase=True)
train_step = tf.train.AdamOptimizer(rate).minimize(cross_entropy, global_step=global_step)
accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(y, 1), y_), tf.float32))
tf.summary.scalar("accuracy", accuracy)
merged = tf.summary.merge_all()
saver = tf.train.Saver(max_to_keep=2)

with tf.Session() as sess:
    train_writer = tf.summary.FileWriter(os.path.join(log_dir, "train"), sess.graph)
    sess.run(tf.global_variables_initializer())
    for i in range(150):
        rows = slice(64 * (i % 20), 64 * (i % 20 + 1))
        feed = {x: images[rows], y_: classes[rows], keep_prob: 0.9}
        if i % 50 == 0:
            summary, _ = sess.run([merged, train_step], feed_dict=feed)
            train_writer.add_summary(summary, i)
            saver.save(sess, os.path.join(log_dir, "model.ckpt"), global_step=global_step)
        else:
            sess.run(train_step, feed_dict=feed)
    test = {x: images[1280:], y_: classes[1280:], keep_prob: 1.0}
    test_accuracy, logits = sess.run([accuracy, y], feed_dict=test)
    last_rate, steps = sess.run([rate, global_step])
    path = saver.save(sess, os.path.join(log_dir, "model.ckpt"), global_step=global_step)
    train_writer.close()

with tf.Session() as sess:
    saver.restore(sess, tf.train.latest_checkpoint(log_dir))
    restored_logits = sess.run(y, feed_dict=test)
print(test_accuracy, last_rate, steps)
