"""REINFORCE learns to keep a pole on a cart upright; the environment is written here, on NumPy arrays.

Run it with ``python examples/reinforce.py``, or with a number of updates after it.
"""

import sys

import numpy as np

import hybridflow as hf
from hybridflow import nn

UPDATES = int(sys.argv[1]) if len(sys.argv) > 1 else 150
CARTS, LONGEST = 32, 200


class Poles:
    """Carts with a pole each (Barto, Sutton and Anderson, 1983): one is over when its pole falls or it leaves."""

    def __init__(self, count, seed):
        self.state = np.random.default_rng(seed).uniform(-0.05, 0.05, (4, count))
        self.going = np.ones(count, bool)

    def push(self, right):
        """Push each cart to the left or right for a fiftieth of a second; return whether it still goes."""
        _, speed, angle, turn = self.state
        force = np.where(right, 10.0, -10.0)
        pushed = (force + 0.05 * turn**2 * np.sin(angle)) / 1.1
        turning = (9.8 * np.sin(angle) - np.cos(angle) * pushed) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        moving = pushed - 0.05 * turning * np.cos(angle) / 1.1
        self.state = self.state + 0.02 * np.stack([speed, moving, turn, turning])
        self.going &= (np.abs(self.state[0]) < 2.4) & (np.abs(self.state[2]) < 0.21)
        return self.going.copy()

    def seen(self):
        return self.state.T.astype(np.float32)


hf.random.seed(0)
policy = nn.Sequential(nn.Linear(4, 32), hf.tanh, nn.Linear(32, 2))
optimizer = hf.optim.Adam(policy, rate=1e-2, clip=1.0)


@hf.compile
def choose(seen):
    return hf.random.categorical(policy(seen))


@hf.no_grad()
def played(seed):
    """Play all carts to their ends; return what was seen and done, who was going, and what reward came after it.

    An episode is as long as its last cart goes. Compiled functions take any length.
    """
    poles, seen, done, alive = Poles(CARTS, seed), [], [], []
    for _ in range(LONGEST):
        seen.append(poles.seen())
        alive.append(poles.going.copy())
        done.append(choose(seen[-1]).numpy())
        if not poles.push(done[-1] == 1).any():
            break
    rewards = np.array(alive, np.float32)
    returns = np.cumsum(rewards[::-1], axis=0)[::-1].copy()
    return np.stack(seen), np.stack(done), rewards, returns


def step(seen, done, alive, returns):
    """Make what was done more likely, the more so the more came after it."""
    count = hf.sum(alive)
    mean = hf.sum(returns * alive) / count
    spread = hf.sqrt(hf.sum(alive * (returns - mean) ** 2) / count) + 1e-6
    with hf.GradientTape() as tape:
        surprise = nn.softmax_cross_entropy(policy(seen), done)
        loss = hf.sum(surprise * alive * (returns - mean) / spread) / count
    optimizer.update(tape.gradient(loss, policy))
    return loss


fast_step = hf.compile(step)
run = hf.train.Run(data=range(UPDATES))  # whose items are the seeds
for seed in run.steps(UPDATES):
    game = played(seed)
    fast_step(*game)
    run.log(length=game[2].sum() / CARTS)
    if run.every(25):
        print(f"update {seed + 1}: a pole stands for {run.last('length'):.0f} of {LONGEST} steps")

found = hf.compare(step, *game)
print(found)
assert found.same
