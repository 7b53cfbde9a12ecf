"""Pictures of graphs: what they show, where they put it, and how the page behaves in a browser."""

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow.core.errors import ArgumentError
from hybridflow.pictures import in_notebook_html
from hybridflow.pictures.coordinates import placed
from hybridflow.pictures.diagram import Box, Group, diagram_of
from hybridflow.pictures.difference import difference
from hybridflow.pictures.layers import layout_of
from hybridflow.pictures.page import page_of
from hybridflow.pictures.svg import svg_of

X = hf.zeros((8, 16))
W = hf.zeros((16, 16))


def block(x, w):
    with hf.name_scope("mlp"):
        return x + hf.nn.gelu(hf.nn.layer_norm(x) @ w) * 0.5


def model(x, w):
    for layer in range(2):
        with hf.name_scope(f"layer_{layer}"):
            x = block(x, w)
    x = hf.while_loop(lambda i, x: hf.sum(x) < 5.0, lambda i, x: (i + 1, hf.sin(x) @ w), (hf.asarray(0), x))[1]
    return hf.mean(x * x)


def graph_of(fn=model, *args):
    return hf.compile(fn).graph(*(args or (X, W)))


def gradient_graph():
    def straight(x, w):
        with hf.name_scope("net"):
            return hf.mean(block(x, w))

    return graph_of(hf.grad(straight, argnums=1))


def boxes(diagram):
    return [item for item in layout_of(diagram).items() if isinstance(item, Box)]


# -- what is shown ------------------------------------------------------------------------------------------------


def shown_of(graph):
    """The operations that a picture has boxes or frames for, counted independently."""
    small = [n for n in graph.walk() if n.op.name == "constant" and n.spec().size == 1]
    return sum(1 for _ in graph.walk()) - len(small)


@pytest.mark.parametrize("make", [graph_of, gradient_graph])
def test_every_operation_is_shown_once(make):
    graph = make()
    diagram = diagram_of(graph)
    groups = [item for item in layout_of(diagram).items() if isinstance(item, Group) and item.kind == "op"]
    shown = [box for box in boxes(diagram) if box.kind in ("op", "gradient")]
    assert len(shown) + len(groups) == shown_of(graph) == diagram.root.count


def test_frames_are_name_scopes_functions_and_lines():
    titles = {item.title for item in layout_of(diagram_of(graph_of())).items() if isinstance(item, Group)}
    assert {"layer_0", "layer_1", "while"} <= titles
    assert "gradient" in {i.title for i in layout_of(diagram_of(gradient_graph())).items() if isinstance(i, Group)}


def test_arrows_are_the_values_that_are_read():
    graph = graph_of(lambda x, y: hf.exp(x) * y + hf.exp(x), X, X)
    found = {(arrow.source.title, arrow.target.title) for arrow in diagram_of(graph).arrows}
    assert found == {("x", "exp"), ("exp", "multiply"), ("y", "multiply"), ("multiply", "add"), ("exp", "add"),
                     ("add", "output")}


def test_numbers_are_written_into_the_box_that_reads_them():
    (box,) = [box for box in boxes(diagram_of(graph_of(lambda x: x * 0.25, X))) if box.kind == "op"]
    assert box.lines == ("·, 0.25",)
    assert box.label == "f32[8,16]"


def test_colours_are_the_counts_of_the_operations():
    weights = {box.title: box.weight for box in boxes(diagram_of(graph_of(lambda x, w: hf.tanh(x @ w)), "flops"))}
    assert weights["matmul"] == 2 * 8 * 16 * 16
    bytes_ = {box.title: box.weight for box in boxes(diagram_of(graph_of(lambda x, w: hf.tanh(x @ w)), "bytes"))}
    assert bytes_["matmul"] == 4 * (8 * 16 + 16 * 16 + 8 * 16)
    graph = graph_of(lambda x: hf.tanh(x), X)
    given_weights = {box.title: box.weight for box in boxes(diagram_of(graph, {graph.nodes[0]: 3.5}))}
    assert given_weights["tanh"] == 3.5


def test_colours_of_open_sizes_are_those_of_the_size_traced_with():
    fn = hf.compile(lambda x: hf.tanh(x), dynamic=True, input_signature=[hf.TensorSpec([None, 3])])
    graph = fn.graph(hf.zeros((4, 3)))
    assert diagram_of(graph, "bytes").root.weight > 0


def test_an_unknown_colour_is_refused():
    with pytest.raises(ArgumentError, match=r"color='heat' is not known\n.*\['bytes', 'flops'\]"):
        graph_of().to_dot(color="heat")


def test_an_eager_recording_has_a_picture(tmp_path: Path):
    x = hf.tensor([1.0, 2.0], requires_grad=True)
    graph = hf.sum(hf.tanh(x) * x).grad_fn.graph()
    graph.to_html(tmp_path / "page.html")
    assert {"tanh", "multiply", "sum"} <= {box.title for box in boxes(diagram_of(graph))}


# -- where it is put ----------------------------------------------------------------------------------------------


def check_layout(graph):
    diagram = diagram_of(graph)
    found = placed(layout_of(diagram))
    for group in [item for item in found.frames if isinstance(item, Group)]:
        frame = found.frames[group]
        inner = [found.frames[child] for child in group.children]
        for one in inner:
            assert frame.x < one.x
            assert one.x + one.width < frame.x + frame.width
            assert frame.y < one.y
            assert one.y + one.height < frame.y + frame.height
        for index, one in enumerate(inner):
            for other in inner[index + 1 :]:
                apart = (
                    one.x + one.width <= other.x + 1e-6 or other.x + other.width <= one.x + 1e-6
                    or one.y + one.height <= other.y + 1e-6 or other.y + other.height <= one.y + 1e-6
                )
                assert apart, (one, other)
    for arrow in diagram.arrows:
        points = found.route(arrow)
        assert [y for _, y in points] == sorted(y for _, y in points), "an arrow never goes up"


@pytest.mark.parametrize("make", [graph_of, gradient_graph])
def test_frames_hold_what_is_inside_nothing_overlaps_and_arrows_go_down(make):
    check_layout(make())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.sampled_from(["", "a", "b", "a/c"])), max_size=30))
def test_any_graph_has_a_layout(steps):
    def program(x):
        values = [x]
        for one, other, scope in steps:
            a, b = values[one % len(values)], values[other % len(values)]
            if scope:
                with hf.name_scope(scope):
                    values.append(a + hf.sin(b))
            else:
                values.append(a * b)
        return values[-3:]

    check_layout(hf.compile(program, autograph=False).lower(hf.zeros((2,))).traced)


# -- the files ----------------------------------------------------------------------------------------------------


def test_svg_is_well_formed_and_shows_every_box(tmp_path: Path):
    graph = gradient_graph()
    graph.to_svg(tmp_path / "graph.svg", color="flops")
    root = ElementTree.parse(tmp_path / "graph.svg").getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("matmul") == sum(1 for node in graph.walk() if node.op.name == "matmul")
    assert any((text or "").startswith("colour: floating-point operations") for text in texts)


def test_svg_is_well_formed_whatever_names_hold():
    graph = hf.compile(lambda x: hf.tanh(x), name='<a & "b">').graph(X)
    assert ElementTree.fromstring(svg_of(diagram_of(graph))) is not None
    assert "</script><" not in page_of(diagram_of(graph)).split("const DATA")[1].split("\n")[0]


def test_dot_has_a_node_per_box_and_an_edge_per_value():
    graph = graph_of()
    text, diagram = graph.to_dot(), diagram_of(graph)
    assert len(re.findall(r"^ *n\d+ \[", text, re.MULTILINE)) == len(boxes(diagram))
    assert len(re.findall(r"^ *n\d+ -> n\d+", text, re.MULTILINE)) == len(
        {(arrow.source, arrow.target, arrow.label) for arrow in diagram.arrows}
    )
    assert text.count("{") == text.count("}")
    if shutil.which("dot"):
        subprocess.run(["dot", "-Tsvg"], input=text, text=True, check=True, capture_output=True)


def test_model_explorer_json_joins_outputs_to_inputs(tmp_path: Path):
    graph = graph_of()
    graph.to_model_explorer(tmp_path / "graph.json")
    ((collection,),) = [json.loads((tmp_path / "graph.json").read_text(encoding="utf-8"))]
    nodes = collection["graphs"][0]["nodes"]
    ids = {node["id"] for node in nodes}
    assert len(ids) == len(nodes)
    for node in nodes:
        for edge in node["incomingEdges"]:
            assert edge["sourceNodeId"] in ids
    assert {"layer_0/mlp", "layer_1/mlp"} <= {node["namespace"] for node in nodes}
    assert any("while" in node["namespace"] for node in nodes if node["label"] == "sin")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "graph.svg"
    path.write_text("old")
    with pytest.raises(ArgumentError):
        graph_of().to_svg(path, color="heat")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_notebooks_show_the_page_in_a_frame():
    assert graph_of()._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html')
    assert "flops" not in in_notebook_html(graph_of(), None).split("const DATA")[0]


def test_two_thousand_operations_are_drawn_quickly_enough_to_use():
    def deep(x, weights):
        for layer, w in enumerate(weights):
            with hf.name_scope(f"layer_{layer}"):
                x = block(x, w)
        return hf.mean(x)

    graph = graph_of(hf.grad(deep, argnums=1), X, [W] * 120)
    assert shown_of(graph) > 2000
    page = page_of(diagram_of(graph, "flops"))
    assert len(page) < 3_000_000


# -- what passes change -------------------------------------------------------------------------------------------


def twice(x):
    return hf.exp(x) * 1.0 + hf.exp(x)


def test_the_history_says_what_each_pass_removed(tmp_path: Path):
    history = hf.compile(twice).lower(X).passes()
    assert [step.record.name for step in history] == ["algebra", "cse", "dead_code"]
    assert "-multiply" in str(history[0])
    assert "-exp" in str(history[1])
    history.to_html(tmp_path / "passes.html")
    text = (tmp_path / "passes.html").read_text(encoding="utf-8")
    assert "removed 1: exp" in text
    assert "#c62f2f" in text


def test_what_a_pass_copies_is_the_same_node():
    step = hf.compile(twice).lower(X).passes()[1]
    removed, added = difference(step.before, step.after)
    assert [node.op.name for node in removed] == ["exp"]
    assert not added


def test_a_function_that_no_pass_changes_has_an_empty_history():
    history = hf.compile(lambda x: hf.tanh(x)).lower(X).passes()
    assert len(history) == 0
    assert "0 passes changed the graph" in str(history)
    assert "Nothing changed" in history._repr_html_()


# -- in a browser -------------------------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


def in_browser(page: str, script: str, tmp_path: Path):
    """Open a page, run a script in it, and return what it evaluates to."""
    path = tmp_path / "page.html"
    probe = f"<script>document.title = JSON.stringify((() => {{ {script} }})());</script></body>"
    path.write_text(page.replace("</body>", probe))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
               "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}",
               "--window-size=1280,900", "--dump-dom"]
    assert CHROMIUM is not None
    done = subprocess.run([CHROMIUM, *options, path.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert found is not None
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


@browser
@pytest.mark.browser
@pytest.mark.parametrize("make", [graph_of, gradient_graph])
def test_the_page_puts_everything_where_the_svg_does(make, tmp_path: Path):
    diagram = diagram_of(make())
    seen = in_browser(page_of(diagram), "viewer.fold(false); return viewer.frames();", tmp_path)
    frames = placed(layout_of(diagram)).frames
    # An open frame's title has a mark before it, which takes no room.
    assert {int(number) for number in seen} == {item.number for item in frames}
    for item, frame in frames.items():
        there = seen[str(item.number)]
        assert (there["x"], there["y"], there["width"], there["height"]) == pytest.approx(
            (frame.x, frame.y, frame.width, frame.height), abs=1e-3
        )


@browser
@pytest.mark.browser
def test_frames_fold_by_a_click_and_operations_are_found(tmp_path: Path):
    script = """
      const click = (node) => {
        for (const kind of ["pointerdown", "pointerup"])
          node.dispatchEvent(new PointerEvent(kind, { bubbles: true, clientX: 5, clientY: 5 }));
      };
      const texts = () => [...document.querySelectorAll("#graph text")].map((one) => one.textContent);
      const count = () => document.querySelectorAll("#graph .box").length;
      const result = { open: count() };
      const titles = [...document.querySelectorAll("#graph g.group text")];
      const title = titles.find((one) => one.textContent.includes("layer_0"));
      click(title);
      result.folded = count();
      result.says = texts().filter((one) => one.includes("operations")).length;
      document.querySelector("#fold").click();
      result.all = count();
      const search = document.querySelector("#search");
      search.value = "GELU";
      search.dispatchEvent(new Event("input"));
      result.count = document.querySelector("#count").textContent;
      result.found = document.querySelectorAll("#graph .found").length;
      result.details = document.querySelector("#details").textContent;
      document.querySelector("#unfold").click();
      result.again = count();
      result.arrows = document.querySelectorAll("#graph .arrow").length;
      return result;
    """
    diagram = diagram_of(graph_of(), "flops")
    found = in_browser(page_of(diagram), script, tmp_path)
    everything = len(boxes(diagram))
    assert found["open"] == found["again"] == everything
    assert found["folded"] < everything
    assert found["says"] == 1
    assert found["all"] < found["folded"]
    assert (found["count"], found["found"]) == ("1 of 2", 2)
    assert "gelu" in found["details"]
    assert "test_pictures.py:" in found["details"]
    assert found["arrows"] == len({(arrow.source, arrow.target) for arrow in diagram.arrows})


@browser
@pytest.mark.browser
def test_a_large_graph_opens_folded(tmp_path: Path):
    def deep(x, w):
        for layer in range(60):
            with hf.name_scope(f"layer_{layer}"):
                x = block(x, w)
        return hf.mean(x)

    page = page_of(diagram_of(hf.compile(hf.grad(deep, argnums=1)).lower(X, W).traced))  # nothing outlined yet
    script = "return ['.box', '.group'].map((kind) => document.querySelectorAll(`#graph ${kind}`).length);"
    shown, groups = in_browser(page, script, tmp_path)
    assert shown < 20 < groups


@browser
@pytest.mark.browser
def test_a_step_opens_at_its_first_change(tmp_path: Path):
    def fn(x):
        for i in range(30):
            x = hf.tanh(x) * (i + 2)
        return hf.negative(hf.exp(x) + hf.exp(x))

    page = hf.compile(fn).lower(X).passes().page()
    script = """
      const pane = document.querySelector(".pair > div");
      const inside = () => {
        const frame = pane.getBoundingClientRect();
        return [...pane.querySelectorAll(".marked")].map((one) => {
          const box = one.getBoundingClientRect();
          return box.top >= frame.top && box.bottom <= frame.bottom;
        });
      };
      const result = { scrolled: pane.scrollTop, open: inside() };
      const button = pane.querySelector("button");
      button.click();
      return { ...result, next: inside(), panes: document.querySelectorAll(".pair > div").length };
    """
    seen = in_browser(page, script, tmp_path)
    assert seen["scrolled"] > 0
    assert any(seen["open"])
    assert any(seen["next"])
