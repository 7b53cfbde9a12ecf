"""`Graph.to_mermaid`: what it says, its limits, and that Mermaid itself draws it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from browsers import answer_of, browser, opened

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.errors import ArgumentError
from hybridflow.pictures import mermaid

MERMAID = "mermaid@12.3.0"


def model_graph() -> Any:
    """A graph with scopes, nested graphs, a gradient, and characters that mean something to Mermaid."""
    nn.init.seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.gelu, nn.Linear(3, 2))

    @hf.compile
    def step(x: Any, settings: Any) -> Any:
        with hf.GradientTape() as tape:
            with hf.name_scope('"first" <layer> #1'):
                h = hf.sin(x) * hf.cos(x) + settings["a|b"]
            h = hf.cond(hf.sum(h) > 0, lambda: h * 2, lambda: net(h) @ hf.ones((2, 4)))
            loss = hf.mean(net(h) ** 2)
        return loss, tape.gradient(loss, net.parameters())

    return step.graph(hf.ones((2, 4)), {"a|b": hf.ones((4,))})


def deep_graph(blocks: int, wide: int) -> Any:
    @hf.compile
    def deep(x: Any) -> Any:
        for block in range(blocks):
            with hf.name_scope(f"block_{block}"):
                total: Any = 0.0
                for i in range(wide):  # a comprehension is a function of its own before Python 3.12
                    total = total + hf.sin(x * (block * wide + i + 2.0))
                x = total
        return x

    return deep.replay(hf.ones((2,))).graph  # as traced: passes find the repeats


def test_the_text():
    @hf.compile
    def f(x: Any) -> Any:
        with hf.name_scope("inner"):
            y = x * 2.0
            y = y + x
        return hf.sin(y)

    lines = f.graph(hf.asarray([1.0])).to_mermaid().splitlines()
    assert lines[:12] == [
        "flowchart TB", '  n1(["x"]):::input', '  subgraph n2["inner"]', '    n3["multiply<br/>·, 2"]:::op',
        '    n4["add"]:::op', "  end",
        "  style n2 fill:#f2f6fa,stroke:#b3c1ce,color:#1c2733", '  n5["sin"]:::op', '  n6(["output"]):::output',
        '  n1 -->|"f32[1]"| n3', '  n3 -->|"f32[1]"| n4', '  n1 -->|"f32[1]"| n4',
    ]


def test_special_characters_become_codes():
    text = model_graph().to_mermaid(color="flops")
    assert '["#34;first#34; #60;layer#62; #35;1"]' in text
    assert "a#124;b" in text
    labels = re.findall(r'"([^"\n]*)"', text)
    assert all(not set(label.replace("<br/>", "")) & set('"<>|`&') for label in labels)
    assert "fill:rgb" not in text
    assert re.search(r"style n\d+ fill:#[0-9a-f]{6}", text)


def test_groups_are_folded_where_mermaid_would_give_up():
    small, large = deep_graph(3, 5), deep_graph(12, 30)
    assert "operations" not in small.to_mermaid()
    text = large.to_mermaid()
    assert text.count("-->") <= mermaid.MOST_ARROWS
    assert len(text) <= mermaid.MOST_CHARACTERS
    assert '["block_7<br/>90 operations"]:::scope' in text
    assert 'n1 -->|"f32[2]"| n2' in text
    with pytest.raises(ArgumentError, match=r"to_mermaid: deep has \d+ arrows, and Mermaid draws 500\n.*hf.name_scope"):
        deep_graph(600, 1).to_mermaid()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mermaid's own program, fetched by npm."""
    folder = tmp_path_factory.mktemp("mermaid")
    if shutil.which("npm") is None:
        pytest.skip("no npm on this machine")
    try:
        done = subprocess.run(["npm", "pack", MERMAID], cwd=folder, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        pytest.skip("npm does not answer")
    if done.returncode:
        pytest.skip(f"npm has no {MERMAID} here: {done.stderr[-200:]}")
    (packed,) = folder.glob("mermaid-*.tgz")
    shutil.unpack_archive(packed, folder, filter="data")
    return folder / "package" / "dist" / "mermaid.min.js"


def page_of(texts: list[str], library: Path) -> str:
    return f"""<!doctype html><html><head><meta charset="utf-8"><title>null</title></head><body>
<script src="{library.as_uri()}"></script><script>
mermaid.initialize({{startOnLoad: false, securityLevel: "strict"}});
(async () => {{
  const found = [];
  for (const [number, text] of {json.dumps(texts).replace("<", chr(92) + "u003c")}.entries()) {{
    const place = document.body.appendChild(document.createElement("div"));
    try {{ place.innerHTML = (await mermaid.render("graph" + number, text)).svg; }}
    catch (error) {{ found.push(String(error)); continue; }}
    const all = name => [...place.querySelectorAll(name)].map(one => one.textContent.trim());
    found.push({{nodes: all("g.node"), groups: all("g.cluster"), arrows: all("g.edgeLabel")}});
  }}
  document.title = JSON.stringify(found);
}})();
</script></body></html>"""


@browser
@pytest.mark.browser
def test_mermaid_draws_it(library: Path, tmp_path: Path):
    texts = [graph.to_mermaid(color="flops") for graph in (model_graph(), deep_graph(12, 30))]
    page = tmp_path / "page.html"
    page.write_text(page_of(texts, library))
    both = answer_of(opened(page.as_uri(), tmp_path, "--virtual-time-budget=20000"))
    for text, found in zip(texts, both, strict=True):
        assert isinstance(found, dict), found
        assert len(found["nodes"]) == len(re.findall(r":::\w+$", text, re.MULTILINE))
        assert len(found["groups"]) == text.count("subgraph ")
    assert '"first" <layer> #1' in both[0]["groups"]
    assert any("a|b" in one for one in both[0]["nodes"])
    assert "f32[2,4]" in both[0]["arrows"]
