"""The texts of a compiled signature, from hybridflow's IR to the processor's code."""

from __future__ import annotations

from dataclasses import dataclass

from hybridflow.core.errors import ArgumentError
from hybridflow.ir.graph import Graph
from hybridflow.passes.lib.history import PassHistory
from hybridflow.xla.executable import Executable
from hybridflow.xla.machine_code import assembly_of, llvm_of


@dataclass(frozen=True)
class Lowered:
    """The stages of a compiled function's program for one signature, from the traced graph to XLA's executable.

    Attributes:
        traced: the graph as it was traced.
        graph: the graph after the passes.
        made: the executable; None if a size is open.
    """

    traced: Graph
    graph: Graph
    made: Executable | None

    @property
    def executable(self) -> Executable:
        """The executable.

        Raises:
            ArgumentError: a size is open.
        """
        if self.made is None:
            raise ArgumentError(
                f"lower: XLA compiles {self.graph.name} for sizes, and one of them is open",
                hint="Give a TensorSpec without None, or ask for as_text('graph') or as_text('optimized')."
            )
        return self.made

    def passes(self) -> PassHistory:
        """Run the passes again and return what each of them changed.

        Example:
            >>> import hybridflow as hf
            >>> f = hf.compile(lambda x: hf.exp(x) + hf.exp(x))
            >>> [step.record.name for step in f.lower(hf.asarray([1.0])).passes()]
            ['cse']
        """
        return PassHistory(self.traced)

    def as_text(self, stage: str = "optimized") -> str:
        """Return the program at a stage.

        Args:
            stage: ``graph`` (as traced), ``optimized`` (after hybridflow's passes), ``stablehlo`` (as passed to
                XLA), ``hlo`` (as XLA optimised it), ``llvm`` (the LLVM IR of XLA's kernels, as LLVM optimised it) or
                ``assembly`` (the processor's, by ``objdump``; PTX on NVIDIA's GPUs). For the last two, XLA compiles
                the program once more.

        Raises:
            ArgumentError: `stage` is none of these, or is one of XLA's while a size is open.
            DeviceError: XLA has no such code: on this device, or because the program only calls libraries.
            MissingPackageError: there is no ``objdump`` for the assembly.

        Example:
            >>> import hybridflow as hf
            >>> f = hf.compile(lambda x: hf.sin(x) + 1)
            >>> "define " in f.lower(hf.ones((8,))).as_text("llvm")
            True
        """
        texts = {
            "graph": lambda: str(self.traced),
            "optimized": lambda: str(self.graph),
            "stablehlo": lambda: self.executable.lower().as_text(),
            "hlo": lambda: self.executable.compiled.as_text(),
            "llvm": lambda: llvm_of(self.executable),
            "assembly": lambda: assembly_of(self.executable),
        }
        if stage not in texts:
            raise ArgumentError(f"as_text: {stage!r} is not a stage", hint=f"Choose one of {list(texts)}.")
        return texts[stage]()
