"""Train a small classifier of handwritten digits: eager first, then the same step compiled.

Run it with ``python examples/digits.py``; it needs scikit-learn.
"""

import numpy as np
from sklearn.datasets import load_digits

import hybridflow as hf

BATCH, EPOCHS, RATE = 64, 15, 0.2


def data():
    """Images from 0 to 1 and their digits, shuffled, the last fifth for testing."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[order] / 16).astype(np.float32), labels[order].astype(np.int32)
    split = len(labels) * 4 // 5
    return images[:split], labels[:split], images[split:], labels[split:]


def make_step():
    """Return the parameters, the function from images to scores, and one training step."""
    rng = np.random.default_rng(1)
    w1 = hf.Variable((rng.standard_normal((64, 64)) * 0.18).astype(np.float32), name="w1")
    b1 = hf.Variable(np.zeros(64, np.float32), name="b1")
    w2 = hf.Variable((rng.standard_normal((64, 10)) * 0.18).astype(np.float32), name="w2")
    b2 = hf.Variable(np.zeros(10, np.float32), name="b2")
    parameters = [w1, b1, w2, b2]

    def scores(images):
        return hf.nn.relu(images @ w1 + b1) @ w2 + b2

    def step(images, labels):
        with hf.GradientTape() as tape:
            loss = hf.mean(hf.nn.softmax_cross_entropy(scores(images), labels))
        for parameter, gradient in zip(parameters, tape.gradient(loss, parameters), strict=True):
            parameter.assign_sub(RATE * gradient)
        return loss

    return scores, step


def train(step, images, labels):
    """Run the step over shuffled batches."""
    rng = np.random.default_rng(2)
    for _ in range(EPOCHS):
        order = rng.permutation(len(labels))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            loss = step(images[chosen], labels[chosen])
    return loss.item()


def main():
    """Train both ways and compare one step."""
    images, labels, test_images, test_labels = data()
    for mode in ("eager", "compiled"):
        scores, step = make_step()
        loss = train(step if mode == "eager" else hf.compile(step), images, labels)
        right = np.mean(np.argmax(scores(test_images).numpy(), axis=1) == test_labels)
        print(f"{mode}: last loss {loss:.4f}, {right:.1%} of the test images right")
    print(hf.compare(make_step()[1], images[:BATCH], labels[:BATCH], gradients=True))


if __name__ == "__main__":
    main()
