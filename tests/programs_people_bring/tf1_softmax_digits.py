"""Softmax regression on images of digits with mini-batches."""

import numpy as np
from sklearn.datasets import load_digits

import hybridflow.compat.v1 as tf

digits = load_digits()
images = (digits.data / 16.0).astype(np.float32)
labels = np.eye(10)[digits.target]

x = tf.placeholder(tf.float32, [None, 64])
y_ = tf.placeholder(tf.float32, [None, 10])
W = tf.Variable(tf.zeros([64, 10]))
b = tf.Variable(tf.zeros([10]))
y = tf.nn.softmax(tf.matmul(x, W) + b)

cross_entropy = tf.reduce_mean(-tf.reduce_sum(y_ * tf.log(y), reduction_indices=[1]))
train_step = tf.train.GradientDescentOptimizer(0.5).minimize(cross_entropy)
correct_prediction = tf.equal(tf.argmax(y, 1), tf.argmax(y_, 1))
accuracy = tf.reduce_mean(tf.cast(correct_prediction, tf.float32))

sess = tf.InteractiveSession()
tf.global_variables_initializer().run()
for i in range(200):
    rows = slice(64 * (i % 20), 64 * (i % 20 + 1))
    sess.run(train_step, feed_dict={x: images[rows], y_: labels[rows]})
test_accuracy = accuracy.eval({x: images[1280:], y_: labels[1280:]})
print(test_accuracy)
weights, biases = W.eval(), b.eval()
sess.close()
