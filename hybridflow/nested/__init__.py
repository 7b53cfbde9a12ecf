"""Operations that carry graphs: `hf.cond`, `hf.while_loop`, `hf.scan`, checkpoints, accumulation, custom gradients.

Plain Python when eager, nested graphs in a trace. A body may read and assign Variables, and check conditions. In a
trace it becomes a graph that gets the Variables' values as inputs and returns what it assigned and whether its checks
hold; the trace around it goes on from there.
"""
