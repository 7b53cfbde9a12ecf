"""Operations that carry graphs: `hf.cond`, `hf.while_loop`, `hf.scan`, checkpoints, accumulation, custom gradients.

These are plain Python in eager code, and nested graphs in a trace. A body may read and assign Variables, and check
conditions. In a trace, the body becomes a graph that takes the Variables' values as inputs and also returns the values
it assigned and the outcomes of its checks. The outer trace then assigns the Variables and takes over the checks.

- `branches` has `hf.cond`, `loops` has `hf.while_loop`, its gradient and the number of its steps, `scans` has `hf.scan`
  and the scan that runs the gradient of every loop.
- The files named `checkpoint` have `hf.checkpoint`; `custom_gradient`, `accumulate` and `tensor_array` what they say.
- `bodies` is what they share. `bounded` makes a graph that is right for all sizes up to a bound; `rows` says whether
  the rows of a batch depend on each other.
"""
