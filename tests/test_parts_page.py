"""The page with a line for each layer, loss, optimizer, schedule and metric."""

from __future__ import annotations

import hybridflow as hf
from hybridflow import parts_page


def test_page_is_current(capsys):
    assert parts_page.main(["--check"]) == 0, capsys.readouterr().err


def test_page_has_every_public_name():
    text = parts_page.PATH.read_text(encoding="utf-8")
    names = [f"hf.nn.{name}" for name in hf.nn._LATER if name not in ("stack", "summary")]
    for module in ("optim", "metrics", "data"):
        space = vars(getattr(hf, module))
        names += [f"hf.{module}.{name}" for name, one in space.items() if name[0] != "_" and callable(one)]
    losses = ("mse", "mae", "huber", "hinge", "nll", "kl_div", "softmax_cross_entropy", "sigmoid_cross_entropy")
    names += [f"hf.nn.{name}" for name in losses]
    assert len(names) > 90
    assert [name for name in names if f"| `{name}(" not in text] == []
