"""`%load_ext hybridflow`: reports of a call or a cell, written as the call is."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from hybridflow.analysis.compare import compare
from hybridflow.analysis.cost import cost
from hybridflow.analysis.profile import profile
from hybridflow.core.errors import message
from hybridflow.tracing.compile import compile as compiled
from hybridflow.tracing.function import CompiledFunction
from hybridflow.tracing.method import CompiledMethod


def load_ipython_extension(shell: Any) -> None:
    """Add magics to a notebook: ``%load_ext hybridflow`` calls this.

    ``%compare f(x)``, ``%cost f(x)``, ``%graph f(x)``, ``%explain f``, and ``%%profile`` on the first line of a cell
    return, and show, what the functions of these names return.

    Args:
        shell: IPython's shell.
    """
    from IPython.core.error import UsageError
    from IPython.core.magic import needs_local_scope, no_var_expand

    def read(magic: str, line: str, wanted: type[ast.expr], example: str) -> ast.expr:
        """Return the expression of a line, which is of a kind."""
        hint = f"Write %{magic} {example}."
        if not line.strip():
            raise UsageError(message(f"%{magic} takes an expression on its line", hint=hint))
        try:
            found = ast.parse(line.strip(), "<magic>", "eval").body
        except SyntaxError as error:
            why = f"%{magic}: this is not an expression of Python: {error.msg}"
            raise UsageError(message(why, got=line, hint=hint)) from None
        if not isinstance(found, wanted):
            why = f"%{magic} takes a call of a function, as you would write it"
            raise UsageError(message(why, got=line, hint=hint))
        return found

    def run(line: str, expression: ast.expr, names: dict[str, Any]) -> Any:
        """Return the value of an expression; its source can be read, as that of a cell."""
        __tracebackhide__ = True  # IPython leaves such frames out
        code = compile(ast.Expression(expression), shell.compile.cache(line.strip()), "eval")
        return eval(code, {**shell.user_ns, **names})

    def add(name: str, function: Callable[..., Any]) -> None:
        """Add a magic that does what a function does with the function and the arguments of a call."""

        @needs_local_scope
        @no_var_expand
        def magic(line: str, local_ns: dict[str, Any]) -> Any:
            __tracebackhide__ = True
            call = read(name, line, ast.Call, "f(x)")
            assert isinstance(call, ast.Call)
            asked = ast.Call(ast.Name("__report__", ast.Load()), [call.func, *call.args], call.keywords)
            asked = ast.fix_missing_locations(ast.copy_location(asked, call))
            return run(line, asked, {**local_ns, "__report__": function})

        magic.__doc__ = f"`%{name} f(x)`: what `hf.{name}(f, x)` returns; its options are arguments of the call."
        shell.register_magic_function(magic, "line", name)

    @needs_local_scope
    @no_var_expand
    def explain(line: str, local_ns: dict[str, Any]) -> Any:
        """`%explain f`: what `f.explain()` returns: why the compiled function was traced, and what was made."""
        __tracebackhide__ = True
        function = run(line, read("explain", line, ast.expr, "f"), local_ns)
        if not isinstance(function, CompiledFunction | CompiledMethod):
            hint = "Decorate the function with @hf.compile and call it; then write %explain with its name alone."
            got = f"{line}, of type {type(function).__name__}"
            raise UsageError(message("%explain takes a compiled function", got=got, hint=hint))
        return function.explain()

    def profile_cell(line: str, cell: str) -> Any:
        """`%%profile`: run the cell, and return where its time went, as `hf.profile` says."""
        if line.strip():
            hint = "Write the code in the lines below it."
            raise UsageError(message("%%profile takes nothing on its line", got=line, hint=hint))
        with profile() as found:
            done = shell.run_cell(cell)
        return found if done.success else None

    add("compare", compare)
    add("cost", cost)
    add("graph", _graph)
    shell.register_magic_function(explain, "line", "explain")
    shell.register_magic_function(profile_cell, "cell", "profile")


def _graph(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the graph of a call of a function, compiled or not."""
    if not isinstance(function, CompiledFunction | CompiledMethod):
        function = compiled(function)
    return function.graph(*args, **kwargs)
