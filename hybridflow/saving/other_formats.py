"""What a file or folder is that is not what a function reads, and what reads it."""

from __future__ import annotations

import os
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from hybridflow.core.errors import FileError, FileFormatError, FileMissingError
from hybridflow.saving.reader import PathLike

_MAGIC = {
    b"\x93NUMPY": ("an array of NumPy (.npy)", 'Read it with np.load(path); hf.save(path, {"name": array}) keeps it.'),
    b"\x89HDF": ("an HDF5 file, as Keras writes",
                 "Read it with h5py or Keras, and give model.load_state_dict the arrays by path."),
    b"\x08": ("an ONNX model", "Run it with ONNX Runtime; hybridflow writes such models, and reads none."),
    b"GGUF": ("a GGUF file", "Convert it to safetensors with the tools of llama.cpp."),
}
_SAFETENSORS = ("a safetensors file", "Read it with hf.load(path, into=model).")
_PICKLE = (
    "a pickle, which can run code",
    "Read it where you trust it, with pickle.load or torch.load, and write its arrays with hf.save.",
)
_TORCH = (
    "a file of PyTorch (.pt)",
    "Write torch.load(path, weights_only=True) with safetensors.torch.save_file, and hf.load(path, into=model, "
    'mapping="torch") reads that; or give model.load_state_dict the state_dict.',
)
_NPZ = ("arrays of NumPy (.npz)", "Read it with dict(np.load(path)), which hf.save and model.load_state_dict take.")
_KERAS = ("a model of Keras (.keras)", "Write model.weights there by name with hf.save, or read it with Keras.")


def other_kind(
    error: FileError | FileFormatError, path: PathLike, who: str, reader: str, own: str
) -> FileError | FileFormatError:
    """Return an error that says what a path is, and what reads it; the same error if that is not known.

    Args:
        error: the error of what has read it.
        path: the file or folder.
        who: what the text begins with.
        reader: the function or the command.
        own: what that reads, one of them.
    """
    known = _described(path)
    if known is None or own in known[0]:
        return error
    kind = FileFormatError if isinstance(error, FileMissingError) else type(error)
    return kind(f"{who}: {os.fspath(path)!r} is {known[0]}, and {reader} reads {own}s", hint=known[1])


def _described(path: PathLike) -> tuple[str, str] | None:
    where = Path(os.fsdecode(path))
    try:
        if where.is_dir():
            return _folder(where)
        if not where.is_file():
            return None
        with where.open("rb") as file:
            head = file.read(9)
    except OSError:  # the error that is being handled tells
        return None
    if head.startswith(b"PK\x03\x04"):
        return _archive(where)
    if head[8:] == b"{":
        return _SAFETENSORS
    if head[:1] == b"\x80" and head[1:2] in b"\2\3\4\5" and any(head[2:]):  # not the length of a header
        return _PICKLE
    return next((known for magic, known in _MAGIC.items() if head.startswith(magic) and any(head[2:])), None)


def _folder(path: Path) -> tuple[str, str]:
    if (path / "manifest.json").is_file():
        return "an artifact of hf.export.save", "Read it with hf.export.load(path)."
    newest = max(path.glob("step-*.safetensors"), default=None)
    if newest is not None:
        step = f"or load one of its checkpoints: hf.load({os.fspath(newest)!r}, into=model)."
        return "the folder of a run", f"Resume it with hf.train.Run(path, ...), {step}"
    files = ", ".join(sorted(one.name for one in path.glob("*.safetensors"))[:5])
    return "a folder", f"Name a file in it: {files}." if files else "It holds no manifest.json and no safetensors file."


def _archive(path: Path) -> tuple[str, str] | None:
    try:
        with ZipFile(path) as archive:
            names = archive.namelist()
    except BadZipFile:
        return None
    if any(name.endswith("data.pkl") for name in names):
        return _TORCH
    if "model.weights.h5" in names:
        return _KERAS
    return _NPZ if names and all(name.endswith(".npy") for name in names) else None
