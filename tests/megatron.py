"""GPT models of Narayanan et al. (2021) as functions of specs alone: nothing of their size is ever allocated."""

from __future__ import annotations

from typing import Any, NamedTuple

import hybridflow as hf
from hybridflow import nn

LENGTH, VOCABULARY = 2048, 51200


class Published(NamedTuple):
    """A row of Table 1 of "Efficient large-scale language model training on GPU clusters using Megatron-LM" (SC21).

    The sizes, and those of micro-batches and of stages that share a device, which the table leaves out, are those of
    examples/academic_paper_scripts/sc21/run_table_1.sh in NVIDIA/Megatron-LM; what was achieved is also in the picture
    images/cases_april2021.png there (commit 50a4b5fa02).
    """

    heads: int
    hidden: int
    layers: int
    tensor: int
    stages: int
    devices: int
    batch: int
    teraflops: float
    """Achieved per GPU, of A100s with 80 GB."""
    rows: int
    """The rows of a micro-batch."""
    chunks: int = 1
    """The stages on each device."""

    @property
    def microbatches(self) -> int:
        """The micro-batches of a replica."""
        return self.batch // (self.replicas * self.rows)

    @property
    def bubble(self) -> float:
        """The share of the time that a device waits, ideally; section 2.2."""
        return (self.stages - 1) / (self.chunks * self.microbatches + self.stages - 1)

    @property
    def replicas(self) -> int:
        """The size of the data axis."""
        return self.devices // (self.tensor * self.stages)

    @property
    def seconds(self) -> float:
        """The time of a step, which follows from equation 3: FLOPs with activations that are computed again."""
        h, n = self.hidden, self.layers
        flops = 96 * self.batch * LENGTH * n * h**2 * (1 + LENGTH / (6 * h) + VOCABULARY / (16 * n * h))
        return flops / (self.devices * self.teraflops * 1e12)


ROWS = {
    "1.7B": Published(24, 2304, 24, 1, 1, 32, 512, 137, 16),
    "7.5B": Published(32, 4096, 36, 4, 1, 128, 512, 142, 16),
    "18.4B": Published(48, 6144, 40, 8, 1, 256, 1024, 135, 8),
    "39.1B": Published(64, 8192, 48, 8, 2, 512, 1536, 138, 4),
    "145.6B": Published(96, 12288, 80, 8, 8, 1536, 2304, 148, 2, 2),
}
LAYOUTS: dict[str, Any] = {
    "table": ("model", None), "wq": (None, None, "model", None), "wk": (None, None, "model", None),
    "wv": (None, None, "model", None), "wo": (None, "model", None, None), "up": (None, None, "model"),
    "down": (None, "model", None),
}


@hf.checkpoint
def block(x, wq, wk, wv, wo, up, down):
    """A transformer block; its activations are computed again for the gradient, as in the paper."""
    y = nn.layer_norm(x)
    q, k, v = (hf.einsum("bsh,hnd->bnsd", y, w) for w in (wq, wk, wv))
    weights = nn.softmax(hf.einsum("bnsd,bntd->bnst", q, k) * 0.125, axis=-1)
    x = x + hf.einsum("bnsd,ndh->bsh", hf.einsum("bnst,bntd->bnsd", weights, v), wo)
    return x + nn.gelu(nn.layer_norm(x) @ up, approximate=True) @ down


def blocks(x, weights):
    """Several blocks, as a loop over the first axis of their weights."""
    return hf.scan(lambda x, own: (block(x, *own), None), x, weights)[0]


def head(x, table, targets):
    """The mean loss; the table of the embedding is that of the logits too."""
    return hf.mean(nn.softmax_cross_entropy(nn.layer_norm(x) @ hf.matrix_transpose(table), targets))


def step(tokens, targets, table, wq, wk, wv, wo, up, down):
    """A step of data and tensor parallel training, without the optimizer."""
    weights = (table, wq, wk, wv, wo, up, down)
    with hf.GradientTape() as tape:
        tape.watch(weights)
        x = nn.embedding(tokens, table)
        loss = head(blocks(x, weights[1:]), table, targets)
    return loss, tape.gradient(loss, weights)


def weight_specs(row, layers):
    """The specs of a model's weights, in bfloat16."""
    h, n, d = row.hidden, row.heads, row.hidden // row.heads
    shapes = [(VOCABULARY, h), *[(layers, h, n, d)] * 3, (layers, n, d, h), (layers, h, 4 * h), (layers, 4 * h, h)]
    return [hf.TensorSpec(shape, "bfloat16") for shape in shapes]


def simulated(row):
    """The estimate for a row without a pipeline."""
    mesh = hf.Mesh({"data": 1, "model": 1})
    layouts = {**LAYOUTS, "tokens": ("data", None), "targets": ("data", None)}
    compiled = hf.compile(step, mesh=mesh, in_layouts=layouts, out_layouts=(None, tuple(LAYOUTS.values())))
    rows = hf.TensorSpec((row.batch, LENGTH), "int32")
    return hf.simulate(compiled, rows, rows, *weight_specs(row, row.layers),
                       mesh={"data": row.replicas, "model": row.tensor}, hardware="a100-80gb")


def piped(row):
    """The estimate for one replica of a row with a pipeline; devices reduce gradients over replicas once, afterwards.

    Where several stages share a device, the paper's schedule has the bubble of ``"gpipe"`` with as many times as many
    micro-batches, each of so many fewer rows.
    """
    microbatches = row.microbatches * row.chunks

    def step(tokens, targets, table, *weights):
        with hf.GradientTape() as tape:
            tape.watch((table, *weights))
            own = [tuple([one[number] for one in weights]) for number in range(row.stages)]
            stages: list[Any] = [lambda x, own=own[number]: blocks(x, own) for number in range(row.stages)]
            first = stages[0]
            stages[0] = lambda tokens: first(nn.embedding(tokens, table))
            loss = hf.distribute.pipeline(
                stages, tokens, targets, loss=lambda x, targets: head(x, table, targets), microbatches=microbatches,
                schedule="gpipe",
            )
        return loss, tape.gradient(loss, (table, *weights))

    def named(tokens, targets, table, wq, wk, wv, wo, up, down):
        return step(tokens, targets, table, wq, wk, wv, wo, up, down)

    layouts = {name: layout if name == "table" else (None, *layout) for name, layout in LAYOUTS.items()}
    compiled = hf.compile(named, mesh=hf.Mesh({"stage": 1, "model": 1}), in_layouts=layouts,
                          out_layouts=(None, tuple(layouts.values())))
    table, *weights = weight_specs(row, row.layers // row.stages)
    weights = [hf.TensorSpec((row.stages, *one.shape), one.dtype) for one in weights]
    rows = hf.TensorSpec((row.batch // row.replicas, LENGTH), "int32")
    return hf.simulate(compiled, rows, rows, table, *weights, mesh={"stage": row.stages, "model": row.tensor},
                       hardware="a100-80gb")
