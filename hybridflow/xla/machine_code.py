"""The code that XLA makes of a program for the processor or the accelerator: LLVM's IR, and assembly."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import jax

from hybridflow.core.errors import DeviceError, MissingPackageError
from hybridflow.xla.executable import Executable

_DUMP = {"xla_dump_emitter_re": "llvm.*"}
"""Without this, jaxlib 0.12 writes no LLVM IR."""
_TOOLS = ("llvm-objdump", "objdump")


def llvm_of(executable: Executable) -> str:
    """Return the LLVM IR, after LLVM's optimisations, of every kernel that XLA made."""
    return _headed(executable, "llvm", lambda folder: _texts(folder, "*.ir-with-opt.ll"))


def assembly_of(executable: Executable) -> str:
    """Return the assembly of every kernel that XLA made: PTX on NVIDIA's GPUs, the processor's on a CPU."""
    return _headed(executable, "assembly", lambda folder: _texts(folder, "*.ptx") or _disassembled(folder))


def _headed(executable: Executable, stage: str, read: Any) -> str:
    """Return the code of each of an executable's programs."""
    if executable.parts:
        parts = [(f"; {part.name}, run {part.runs}x\n", part.program) for part in executable.parts]
    else:
        parts = [("", executable)]
    return "\n".join([head + _dumped(program, stage, read) for head, program in parts])


def _dumped(program: Executable, stage: str, read: Any) -> str:
    """Compile a program again, with XLA's dumps in a folder of its own, and read them.

    Raises:
        DeviceError: XLA wrote no such code.
    """
    with tempfile.TemporaryDirectory(prefix="hybridflow-") as folder:
        options = {**program.options, **_DUMP, "xla_dump_to": folder}
        try:
            program.lower().compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            raise DeviceError(f"as_text: XLA does not write {stage} here", got=str(error).partition("\n")[0],
                              hint="as_text('hlo') is the last text that XLA has on every device.") from error
        text = read(Path(folder))
    if not text:
        raise DeviceError(f"as_text: XLA made no {stage} of its own for this program: it only calls libraries or moves "
                          f"values, or XLA has none on {jax.default_backend()}",
                          hint="as_text('hlo') shows what it does.")
    return text


def _texts(folder: Path, pattern: str) -> str:
    """Return the files of a kind, each headed by its kernel's name."""
    return "\n".join(f"; {_kernel(path)}\n{path.read_text('utf-8')}" for path in sorted(folder.glob(pattern)))


def _kernel(path: Path) -> str:
    """Return the kernel's name: the files are ``module_0001.jit_f.obj-file.NAME_kernel_module.o`` and the like."""
    match = re.search(r"([^.]+?)(?:_kernel_module)?\.(?:o|ptx|ir-with-opt\.ll)$", path.name)
    return path.name if match is None else match[1]


def _disassembled(folder: Path) -> str:
    objects = sorted(folder.glob("*.o"))
    if not objects:
        return ""
    tool = next(filter(None, map(shutil.which, _TOOLS)), None)
    if tool is None:
        raise MissingPackageError(
            "as_text: XLA writes machine code, and there is no program here that disassembles it",
            got=f"none of {list(_TOOLS)}",
            hint="Install one (Debian's packages binutils and llvm have them), or ask for as_text('llvm')."
        )
    texts: list[str] = []
    for path in objects:
        run = [tool, "--disassemble", "--no-show-raw-insn", path.name]
        done = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DeviceError(f"as_text: {Path(tool).name} does not read what XLA wrote", got=done.stderr.strip()[:200],
                              hint="Ask for as_text('llvm').")
        texts.append(f"; {_kernel(path)}\n{done.stdout.strip()}\n")
    return "\n".join(texts)
