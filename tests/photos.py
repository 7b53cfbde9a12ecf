"""Examples as files give them: one at a time, ragged, sometimes broken; and a program that loads them in processes."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

import hybridflow as hf


class Photos:
    """A number of examples: an array of 1 to 5 elements, the number, and the process that loaded it."""

    def __init__(self, *, count=23, broken=None, fatal=None, odd=None, seconds=0.0):
        self.count, self.broken, self.fatal, self.odd, self.seconds = count, broken, fatal, odd, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        time.sleep(self.seconds)
        if number == self.broken:
            raise FileNotFoundError(2, "No such file", f"{number}.png")
        if number == self.odd:
            raise OddError("it is odd", {"cannot": "be pickled"})
        if number == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full(number % 5 + 1, number, np.float32), number, os.getpid()


class OddError(Exception):
    """An error that pickle takes and cannot give back."""

    def __init__(self, text, more):
        super().__init__(text)
        self.more = more


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else ignored in the background
    for _, _, process in hf.data.Batches(Photos(count=100_000, seconds=0.05), 2, pad=0, workers=2):
        print(*{int(one) for one in process.numpy()}, flush=True)
