"""A logistic regression that is saved as a model and loaded into an empty graph."""

import os
import tempfile

import numpy as np

import hybridflow.compat.v1 as tf

export_path = os.path.join(tempfile.mkdtemp(), "1")
rng = np.random.RandomState(3)
features = rng.randn(60, 4)
targets = (features @ np.array([1.0, -2.0, 0.5, 0.0]) > 0).astype(np.float32)[:, None]

graph = tf.Graph()
with graph.as_default():
    x = tf.placeholder(tf.float32, shape=[None, 4], name="x")
    t = tf.placeholder(tf.float32, shape=[None, 1], name="t")
    logits = tf.layers.dense(x, 1, name="out", kernel_initializer=tf.zeros_initializer())
    y = tf.sigmoid(logits, name="y")
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=t, logits=logits))
    train_op = tf.train.MomentumOptimizer(0.5, 0.9).minimize(loss)
    with tf.Session(graph=graph) as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(50):
            sess.run(train_op, feed_dict={x: features, t: targets})
        expected = sess.run(y, feed_dict={x: features})
        builder = tf.saved_model.builder.SavedModelBuilder(export_path)
        signature = tf.saved_model.signature_def_utils.build_signature_def(
            inputs={"features": tf.saved_model.utils.build_tensor_info(x)},
            outputs={"probability": tf.saved_model.utils.build_tensor_info(y)},
            method_name=tf.saved_model.signature_constants.PREDICT_METHOD_NAME,
        )
        builder.add_meta_graph_and_variables(
            sess, [tf.saved_model.tag_constants.SERVING], signature_def_map={"predict": signature}
        )
        builder.save()

with tf.Session(graph=tf.Graph()) as sess:
    meta_graph = tf.saved_model.loader.load(sess, [tf.saved_model.tag_constants.SERVING], export_path)
    signature = meta_graph.signature_def["predict"]
    inputs = sess.graph.get_tensor_by_name(signature.inputs["features"].name)
    outputs = sess.graph.get_tensor_by_name(signature.outputs["probability"].name)
    served = sess.run(outputs, feed_dict={inputs: features[:7]})
    by_name = sess.run("y:0", feed_dict={"x:0": features[:7]})
