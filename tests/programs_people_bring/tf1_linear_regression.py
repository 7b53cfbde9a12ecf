"""Linear regression by gradient descent, as TensorFlow 1 was introduced."""

import numpy as np

import hybridflow.compat.v1 as tf

rng = np.random.RandomState(0)
train_x = np.linspace(0.0, 10.0, 17)
train_y = 0.3 * train_x + 0.8 + rng.normal(0.0, 0.1, 17)
n_samples = train_x.shape[0]
learning_rate, training_epochs, display_step = 0.02, 400, 100

X = tf.placeholder("float", shape=[None])
Y = tf.placeholder("float", shape=[None])
W = tf.Variable(rng.randn(), name="weight", dtype=tf.float32)
b = tf.Variable(rng.randn(), name="bias", dtype=tf.float32)

pred = tf.add(tf.multiply(X, W), b)
cost = tf.reduce_sum(tf.pow(pred - Y, 2)) / (2 * n_samples)
optimizer = tf.train.GradientDescentOptimizer(learning_rate).minimize(cost)
init = tf.global_variables_initializer()

costs = []
with tf.Session() as sess:
    sess.run(init)
    for epoch in range(training_epochs):
        sess.run(optimizer, feed_dict={X: train_x, Y: train_y})
        if (epoch + 1) % display_step == 0:
            c = sess.run(cost, feed_dict={X: train_x, Y: train_y})
            costs.append(c)
            print("Epoch:", "%04d" % (epoch + 1), "cost=", f"{c:.9f}", "W=", sess.run(W), "b=", sess.run(b))
    training_cost = sess.run(cost, feed_dict={X: train_x, Y: train_y})
    weight, bias = sess.run([W, b])
