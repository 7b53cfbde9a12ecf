"""Run a pipeline once for its loss and its gradients."""

from __future__ import annotations

from hybridflow.core.node import Edge, Node
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.nested.pipelines import PIPELINE, PIPELINE_GRADIENT
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import followed, rebuilt


@graph_pass(final=True)
def one_pipeline(graph: Graph, context: PassContext) -> Graph:
    """Take a pipeline's loss from the operation that computes its gradients too, which then runs the stages alone.

    The gradients may need the loss first, as those of its square do: then both operations stay.

    Before:
        graph f(%x: f32[4], %w: f32[], %g: f32[]) -> (f32[], f32[]) {
          %0 = pipeline(%x, %w) {
            stages=(graph stage_0(%x0: f32[2], %w: f32[]) -> (f32[2]) {
              %0 = multiply(%x0, %w) : f32[2]
              return %0
            }, graph stage_1(%x0: f32[2]) -> (f32[]) {
              %0 = sum(%x0) {axis=(0,), keepdims=False} : f32[]
              return %0
            }),
            reads=((0, 1), ()),
            cut=1,
            draws=0,
            checks=(0, 0),
            assigns=((), ()),
            layouts=(None, None),
            call=0,
            mesh=None,
            axis="stage",
            microbatches=2,
            schedule="1f1b",
            rows=()
          } : f32[]
          %1, %2 = pipeline_gradient(%g, %x, %w) {
            stages=(graph stage_0(%x0: f32[2], %w: f32[]) -> (f32[2]) {
              %0 = multiply(%x0, %w) : f32[2]
              return %0
            }, graph stage_1(%x0: f32[2]) -> (f32[]) {
              %0 = sum(%x0) {axis=(0,), keepdims=False} : f32[]
              return %0
            }),
            reads=((0, 1), ()),
            cut=1,
            draws=0,
            checks=(0, 0),
            assigns=((), ()),
            layouts=(None, None),
            call=0,
            mesh=None,
            axis="stage",
            microbatches=2,
            schedule="1f1b",
            rows=(),
            backward=(graph stage_0_gradient(%x0: f32[2], %w: f32[], %g: f32[2]) -> (f32[]) {
              %0 = multiply(%g, %x0) : f32[2]
              %1 = sum(%0) {axis=(0,), keepdims=False} : f32[]
              return %1
            }, graph stage_1_gradient(%g: f32[]) -> (f32[2]) {
              %0 = broadcast_to(%g) {shape=(2,)} : f32[2]
              return %0
            }),
            present=((False, True), (True,)),
            given=(False, True)
          } : f32[], f32[]
          return %0, %2
        }

    After:
        graph f(%x: f32[4], %w: f32[], %g: f32[]) -> (f32[], f32[]) {
          %0, %1 = pipeline_gradient(%g, %x, %w) {
            stages=(graph stage_0(%x0: f32[2], %w: f32[]) -> (f32[2]) {
              %0 = multiply(%x0, %w) : f32[2]
              return %0
            }, graph stage_1(%x0: f32[2]) -> (f32[]) {
              %0 = sum(%x0) {axis=(0,), keepdims=False} : f32[]
              return %0
            }),
            reads=((0, 1), ()),
            cut=1,
            draws=0,
            checks=(0, 0),
            assigns=((), ()),
            layouts=(None, None),
            call=0,
            mesh=None,
            axis="stage",
            microbatches=2,
            schedule="1f1b",
            rows=(),
            backward=(graph stage_0_gradient(%x0: f32[2], %w: f32[], %g: f32[2]) -> (f32[]) {
              %0 = multiply(%g, %x0) : f32[2]
              %1 = sum(%0) {axis=(0,), keepdims=False} : f32[]
              return %1
            }, graph stage_1_gradient(%g: f32[]) -> (f32[2]) {
              %0 = broadcast_to(%g) {shape=(2,)} : f32[2]
              return %0
            }),
            present=((False, True), (True,)),
            given=(False, True)
          } : f32[], f32[]
          return %0, %1
        }
    """
    losses = {node.attrs["call"]: node for node in graph.nodes if node.op is PIPELINE}
    if not losses:
        return graph
    behind: dict[Node, bool] = {}
    moved: dict[Edge, Edge] = {}
    for node in graph.nodes:
        behind[node] = node.op is PIPELINE or any([behind.get(edge[0], False) for edge in edges_of(node)])
        loss = losses.get(node.attrs.get("call")) if node.op is PIPELINE_GRADIENT and not behind[node] else None
        if loss is not None:
            moved.update({(loss, index): (node, index) for index in range(len(loss.outputs))})
            del losses[node.attrs["call"]]
            context.notes["loss taken from the gradients' pipeline"] += 1
    if not moved:
        return graph
    gone = {edge[0] for edge in moved}
    first = [node for node in graph.nodes if not behind[node]]
    then = [followed(node, moved) for node in graph.nodes if behind[node] and node not in gone]
    return rebuilt(graph, [*first, *then], [moved.get(edge, edge) for edge in graph.outputs])
