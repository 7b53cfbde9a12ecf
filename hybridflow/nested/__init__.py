"""Operations that carry graphs: `hf.cond`, `hf.while_loop`, `hf.scan`, checkpoints, accumulation, custom gradients.

These are plain Python in eager code, and nested graphs in a trace. A body may read and assign Variables, and check
conditions. In a trace, the body becomes a graph that takes the Variables' values as inputs and also returns the values
it assigned and the outcomes of its checks. The outer trace then assigns the Variables and takes over the checks.
"""
