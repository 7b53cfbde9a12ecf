"""The model of `serving` behind LitServe, as its documentation writes it: batches, the fast queue, one worker.

Command line: ``python -m tests.benchmarks.serving_peer WEIGHTS PORT MAX_BATCH MAX_DELAY``.
"""

from __future__ import annotations

import sys
from typing import Any

import litserve
import numpy as np
import torch


class Digits(litserve.LitAPI):
    """Layers whose weights are in a file, in their order; LitServe passes what is annotated on to FastAPI."""

    weights = ""

    def setup(self, device: Any) -> None:
        values = np.load(self.weights)
        self.model = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
        self.model.load_state_dict({name: torch.tensor(values[name]) for name in values.files})

    def decode_request(self, request):
        return torch.tensor(request["instances"], dtype=torch.float32)

    def batch(self, inputs: Any) -> Any:
        return torch.concat(inputs)

    def predict(self, x: Any) -> Any:
        with torch.inference_mode():
            return self.model(x)

    def unbatch(self, output: Any) -> Any:
        return [*output.split(1)]

    def encode_response(self, output):
        return {"predictions": output.tolist()}


if __name__ == "__main__":
    api = Digits(max_batch_size=int(sys.argv[3]), batch_timeout=float(sys.argv[4]))
    api.weights = sys.argv[1]
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, fast_queue=True)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), num_api_servers=1, generate_client_file=False,
               log_level="warning")
