"""`hf.save` and `hf.load`: files that the safetensors library reads too, written whole, read with distrust."""

from __future__ import annotations

import errno
import gc
import io
import json
import math
import os
import pickle
import stat
import sys
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import run_python

import hybridflow as hf
from hybridflow.backend.files import whole_file
from hybridflow.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    FileError,
    FileFormatError,
    FileMissingError,
    FileThereError,
    TraceError,
)
from hybridflow.saving.format import DTYPES, FLOAT8

posix = pytest.mark.skipif(os.name != "posix", reason="pipes, umasks and limits are POSIX's")


def bits(array: Any) -> tuple[Any, ...]:
    """Return what two equal arrays have in common, NaN included."""
    found = np.asarray(array)
    return found.dtype, found.shape, np.ascontiguousarray(found).tobytes()


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Draw an array of any dtype the format has, any bits in it, in any order of memory."""
    dtype = draw(st.sampled_from([*DTYPES.values()]))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    raw = draw(st.binary(min_size=(size := math.prod(shape) * dtype.itemsize), max_size=size))
    flat = np.frombuffer(bytes([one % 2 for one in raw]) if dtype.kind == "b" else raw, dtype)
    made = flat.reshape(shape)
    how = draw(st.sampled_from(["as it is", "transposed", "reversed", "part"]))
    if how == "transposed":
        return made.T
    if how == "reversed" and made.ndim:
        return made[::-1]
    if how == "part" and made.ndim:
        return np.repeat(made, 2, axis=0)[::2]
    return made


paths = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda one: one != "__metadata__"
)
contents = st.dictionaries(paths, arrays(), max_size=6)
texts = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.text("aü\n\x00"), max_size=3)


@given(contents, texts, st.booleans())
def test_what_is_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, values: Any, metadata: Any, copy: bool):
    path = tmp_path_factory.getbasetemp() / "one.safetensors"
    hf.save(path, values, metadata=metadata, overwrite=True)
    found = hf.load(path, copy=copy)
    assert {name: bits(one) for name, one in found.items()} == {name: bits(one) for name, one in values.items()}
    assert found.metadata == metadata
    assert not [*path.parent.glob(".*.part")]


@given(contents, texts)
def test_the_library_reads_what_is_saved(tmp_path_factory: pytest.TempPathFactory, values: Any, metadata: Any):
    library = pytest.importorskip("safetensors")
    path = tmp_path_factory.getbasetemp() / "two.safetensors"
    hf.save(path, values, metadata=metadata, overwrite=True)
    read = pytest.importorskip("safetensors.numpy").load_file
    simple = {name: one for name, one in values.items() if one.dtype != ml_dtypes.bfloat16}
    with library.safe_open(path, "np") as file:
        assert set(file.keys()) == {*values}
        assert (file.metadata() or {}) == metadata
        assert {name: bits(file.get_tensor(name)) for name in simple} == {n: bits(one) for n, one in simple.items()}
    if len(simple) == len(values):
        assert {name: bits(one) for name, one in read(path).items()} == {n: bits(one) for n, one in simple.items()}


@given(contents, texts)
def test_what_the_library_saves_is_loaded(tmp_path_factory: pytest.TempPathFactory, values: Any, metadata: Any):
    library = pytest.importorskip("safetensors.numpy")
    path = tmp_path_factory.getbasetemp() / "three.safetensors"
    whole = {name: np.array(one, order="C") for name, one in values.items()}
    library.save_file(whole, path, metadata=metadata or None)  # of {} it makes a header that it does not read itself
    found = hf.load(path)
    assert {name: bits(one) for name, one in found.items()} == {name: bits(one) for name, one in whole.items()}
    assert found.metadata == metadata


def header_of(path: Path) -> tuple[int, dict[str, Any]]:
    """Return where the data begins, and the header."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return 8 + length, json.loads(content[8 : 8 + length])


@given(contents)
def test_data_lies_as_xla_takes_it(tmp_path_factory: pytest.TempPathFactory, values: Any):
    path = tmp_path_factory.getbasetemp() / "four.safetensors"
    hf.save(path, values, overwrite=True)
    start, header = header_of(path)
    assert start % 64 == 0
    for name, one in values.items():
        begin = header[name]["data_offsets"][0]
        assert begin % one.dtype.itemsize == 0
        assert begin % 64 == 0 or one.nbytes % 64


def test_the_same_values_make_the_same_bytes(tmp_path: Path):
    code = """
import os, numpy as np, hybridflow as hf
values = {f"w{i}": np.arange(i, dtype="int16") for i in range(40)}
order = reversed(values) if os.environ["ORDER"] == "1" else values
texts = {k: k for k in ({"a", "b", "c", "d"})}
hf.save(os.environ["FILE"], {k: values[k] for k in order}, metadata=texts)
"""
    for number in (0, 1):
        run_python(code, ORDER=str(number), FILE=str(tmp_path / f"{number}"), PYTHONHASHSEED=str(number))
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()


# -- what is saved ----------------------------------------------------------------------------------------------------


def make_model() -> hf.nn.Sequential:
    return hf.nn.Sequential(hf.nn.Linear(3, 4), hf.nn.relu, hf.nn.BatchNorm(4), hf.nn.Linear(4, 2))


def test_a_run_goes_on_as_if_it_had_not_ended(tmp_path: Path):
    def make() -> tuple[Any, Any, Any]:
        model = make_model()
        optimizer = hf.optim.AdamW(model, rate=hf.optim.cosine(0.1, 10), groups=[{"match": "*.bias", "rate": 0.5}])
        return model, optimizer, {"model": model, "optimizer": optimizer, "random": hf.random.Generator(3)}

    def train(model: Any, optimizer: Any, state: Any) -> None:
        for _ in range(3):
            x = state["random"].normal((8, 3))
            _, gradients = hf.value_and_grad(lambda model: hf.mean(model(x) ** 2))(model)  # noqa: B023
            optimizer.update(gradients)

    model, optimizer, state = make()
    train(model, optimizer, state)
    hf.save(tmp_path / "run", state)
    train(model, optimizer, state)
    other, its_optimizer, its_state = make()
    hf.load(tmp_path / "run", into=its_state)
    train(other, its_optimizer, its_state)
    assert {n: bits(v) for n, v in other.state_dict().items()} == {n: bits(v) for n, v in model.state_dict().items()}
    assert {n: bits(v) for n, v in its_optimizer.state_dict().items()} == {
        n: bits(v) for n, v in optimizer.state_dict().items()
    }


def test_everything_with_variables_is_saved_by_its_names(tmp_path: Path):
    model = make_model()
    things = {
        "mean": hf.optim.EMA(model), "scale": hf.LossScale(), "seen": [hf.metrics.Accuracy(), hf.zeros(2), 3],
        "loose": hf.Variable(1.0),
    }
    hf.save(tmp_path / "all", things)
    found = hf.load(tmp_path / "all")
    assert {"mean.0.weight", "scale.value", "scale.good_steps", "seen.0.count", "seen.1", "seen.2", "loose"} <= {*found}
    assert found["seen.2"].dtype == hf.int32


def test_a_gradient_is_saved_like_its_model(tmp_path: Path):
    model = hf.nn.Linear(3, 2)
    hf.save(tmp_path / "g", hf.grad(lambda model: hf.sum(model(hf.ones((1, 3)))))(model))
    assert hf.load(tmp_path / "g")["weight"].numpy().tolist() == [[1.0] * 3] * 2


def test_what_cannot_be_saved_is_named(tmp_path: Path):
    path = tmp_path / "no"
    itself: list[Any] = []
    itself.append(itself)
    model = hf.nn.Sequential(hf.nn.Linear(3), hf.nn.LayerNorm(scale=False))
    for values, error, text in (
        ({"a": {"b": np.zeros(2, complex)}}, DTypeError, "'a.b' is complex128"),
        ({"a": np.zeros(2, "U3")}, DTypeError, "<U3"),
        ({"a": "text"}, ArgumentTypeError, "'a' is a str"),
        ({"a": None}, ArgumentTypeError, "'a' is a NoneType"),
        ({1.5: hf.zeros(1)}, ArgumentTypeError, "a key of 'the values' is a float"),
        ({"a.b": hf.zeros(1), "a": {"b": hf.zeros(1)}}, ArgumentError, "'a.b' occurs twice"),
        (itself, ArgumentError, "contains itself"),
        (hf.zeros(2), ArgumentTypeError, "a Tensor alone has no path"),
        (object(), ArgumentTypeError, "an object, which has no arrays"),
        (model, ArgumentError, "got: 0\n"),
        ({"__metadata__": hf.zeros(1)}, ArgumentError, "cannot be a name"),
        ({"\ud800": hf.zeros(1)}, ArgumentError, "cannot be a name"),
        (hf.nn.Linear, ArgumentTypeError, "which has no arrays"),
    ):
        with pytest.raises(error, match=text.replace("(", r"\(")):
            hf.save(path, values)
    with pytest.raises(ArgumentTypeError, match="from texts to texts"):
        hf.save(path, {}, metadata={"epoch": 3})  # type: ignore[dict-item]
    with pytest.raises(ArgumentError, match="cannot be a text"):
        hf.save(path, {}, metadata={"a": "\ud800"})
    with pytest.raises(TraceError, match="when it is traced"):
        hf.compile(lambda x: hf.save(path, {"x": x}))(1.0)
    with pytest.raises(TraceError, match="when it is traced"):
        hf.compile(lambda x: hf.load(path)["x"] + x)(1.0)
    assert not [*tmp_path.iterdir()]
    model(hf.ones((2, 3)))
    hf.save(path, model)


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_there_stays_unless_it_is_to_go(tmp_path: Path):
    path = tmp_path / "one"
    hf.save(path, {"x": 1})
    with pytest.raises(FileThereError, match="is there already\n  overwrite=True"):
        hf.save(path, {"x": 2})
    with pytest.raises(FileExistsError):
        hf.save(path, {"x": 2})
    mapped = hf.load(path)["x"]
    assert mapped.item() == 1
    hf.save(path, {"x": 2}, overwrite=True)
    assert (mapped.item(), hf.load(path)["x"].item()) == (1, 2)
    with pytest.raises(FileError, match="cannot be written"):
        hf.save(tmp_path / "no" / "such" / "folder", {"x": 1})
    with pytest.raises(FileError):
        hf.save(tmp_path, {"x": 1}, overwrite=True)
    assert [*tmp_path.iterdir()] == [path]


def test_where_there_are_no_links_a_file_is_still_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def link(*_: Any) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", link)
    hf.save(tmp_path / "one", {"x": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "lexists", lambda path, seen=[]: bool(seen) or seen.append(path))  # it came meanwhile
        with pytest.raises(FileThereError):
            hf.save(tmp_path / "one", {"x": 2})
    assert hf.load(tmp_path / "one")["x"].item() == 1
    assert len([*tmp_path.iterdir()]) == 1


@posix
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_mask(tmp_path: Path, mask: int):
    before = os.umask(mask)
    try:
        hf.save(tmp_path / "one", {"x": 1})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o666 & ~mask


@posix
def test_a_full_disk_and_a_closed_folder_leave_what_was_there(tmp_path: Path):
    path = tmp_path / "one"
    hf.save(path, {"x": 1})
    code = """
import os, resource, signal, numpy as np, hybridflow as hf
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
def attempt():
    try:
        hf.save(os.environ["FILE"], {"x": np.zeros(1 << 20)}, overwrite=True)
    except hf.core.errors.FileError as error:
        print(str(error).splitlines()[1].strip())
attempt()
if os.geteuid() == 0:
    os.seteuid(65534)
attempt()
"""
    tmp_path.chmod(0o555)
    try:
        said = run_python(code, FILE=str(path)).splitlines()
    finally:
        tmp_path.chmod(0o755)
    assert said == ["got: File too large" if os.geteuid() == 0 else "got: Permission denied", "got: Permission denied"]
    assert hf.load(path)["x"].item() == 1
    assert [*tmp_path.iterdir()] == [path]


def test_training_what_was_mapped_leaves_the_file(tmp_path: Path):
    path = tmp_path / "one"
    weights = {"w": np.ones((256, 128), np.float32), "b": np.ones(128, np.float32)}
    hf.save(path, weights)
    before = path.read_bytes()
    known = {name: hf.Variable(np.zeros_like(value)) for name, value in weights.items()}
    optimizer = hf.optim.Adam(known, rate=0.25)
    gradients = {name: hf.asarray(value) for name, value in weights.items()}
    for step in (optimizer.update, hf.compile(lambda gradients: optimizer.update(gradients))):
        hf.load(path, into=known)
        for _ in range(3):
            step(gradients)
        assert abs(known["w"].numpy()[0, 0] - 0.25) < 1e-3
    loaded = hf.load(path)["w"]
    with pytest.raises(ValueError, match="read-only"):
        loaded.numpy()[0] = 3
    assert path.read_bytes() == before


# -- loading into -----------------------------------------------------------------------------------------------------


def test_everything_that_does_not_fit_is_named_at_once(tmp_path: Path):
    model = make_model()
    values: dict[str, Any] = dict(model.state_dict())
    before = {name: bits(one) for name, one in values.items()}
    del values["3.bias"]
    values |= {"0.weight": np.zeros((4, 4), np.float32), "2.bias": np.zeros(4), "more": np.zeros(1)}
    values["3.weight"] = values["3.weight"] + 1
    hf.save(tmp_path / "one", values)
    with pytest.raises(ArgumentError) as caught:
        hf.load(tmp_path / "one", into=model)
    assert str(caught.value).splitlines()[:2] == [
        "load: the values do not fit, and nothing is changed",
        "  got: missing: 3.bias; extra: more; of another shape or dtype: 0.weight (f32[4,4], not "
        "f32[4,3]), 2.bias (f64[4], not f32[4])",
    ]
    with pytest.raises(ArgumentError, match="got: of another shape or dtype"):
        hf.load(tmp_path / "one", into=model, strict=False)
    assert {name: bits(one) for name, one in model.state_dict().items()} == before


def test_what_is_there_is_taken_if_that_is_wanted(tmp_path: Path):
    model = make_model()
    hf.save(tmp_path / "one", {"0.bias": np.full(4, 7, np.float32), "more": 1})
    found = hf.load(tmp_path / "one", into=model, strict=False)
    assert model[0].bias.numpy().tolist() == [7.0] * 4
    assert {*found} == {"0.bias", "more"}


def _written(save: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer, np.ones(3))
    return buffer.getvalue()


def _torch_file(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", b"")


def _artifact(path: Path) -> None:
    hf.export.save(path, lambda x: x, hf.TensorSpec([2]))


def _run(path: Path) -> None:
    list(hf.train.Run(path, data=[1], variables={"w": hf.Variable(1.0)}, progress=False).steps(1))


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda path: path.write_bytes(_written(np.save)), "an array of NumPy.*np.load"),
        (lambda path: path.write_bytes(_written(np.savez)), "arrays of NumPy.*np.load"),
        (lambda path: path.write_bytes(pickle.dumps({"a": 1})), "a pickle.*torch.load"),
        (lambda path: path.write_bytes(b"\x89HDF\r\n"), "an HDF5.*Keras"),
        (_torch_file, "a file of PyTorch.*torch.load"),
        (_artifact, "an artifact.*hf.export.load"),
        (_run, "the folder of a run.*hf.train.Run.*step-000000001.safetensors"),
        (lambda path: path.mkdir(), "a folder.*no safetensors file"),
    ],
)
def test_other_files_are_named_with_what_reads_them(write: Any, said: str, tmp_path: Path):
    write(tmp_path / "one")
    with pytest.raises((FileError, FileFormatError), match=f"(?s)load: .*one' is {said}"):
        hf.load(tmp_path / "one")


def test_only_variables_with_known_sizes_are_loaded_into(tmp_path: Path):
    hf.save(tmp_path / "one", {"x": 1})
    with pytest.raises(ArgumentTypeError, match="'x' is a Tensor, and only Variables"):
        hf.load(tmp_path / "one", into={"x": hf.zeros(())})
    with pytest.raises(ArgumentError, match="sizes are not known yet"):
        hf.load(tmp_path / "one", into=hf.nn.Linear(3))


def test_a_tied_variable_gets_one_value(tmp_path: Path):
    tied = hf.Variable([1.0])
    hf.save(tmp_path / "one", {"a": tied, "b": tied})
    hf.load(tmp_path / "one", into={"a": tied, "b": tied})
    hf.save(tmp_path / "two", {"a": np.float32([1]), "b": np.float32([2])})
    with pytest.raises(ArgumentError, match="different for one Variable: b and a"):
        hf.load(tmp_path / "two", into={"a": tied, "b": tied})
    assert tied.item() == 1.0


# -- hostile files ----------------------------------------------------------------------------------------------------


def raw(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """Return a file of a header, which may be wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def one(**changed: Any) -> dict[str, Any]:
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changed}}


HOSTILE = {
    "empty": b"",
    "short": b"\x01\x00",
    "no header": raw(b""),
    "a header that is not there": raw(b"{}", length=100),
    "an endless header": raw(b"{}", length=1 << 62),
    "a header longer than is read": raw(b"{}", length=(32 << 20) + 1),
    "a list": raw([]),
    "no JSON": raw(b"{nonsense}"),
    "two documents": raw(b"{}{}"),
    "no UTF-8": raw(b'{"\xff": 1}'),
    "deep": raw(b'{"x":' + b"[" * 500_000),
    "many": raw(b'{"x":[' + b"[]," * 1_000_001),
    "a number": raw(b'{"x": NaN}'),
    "digits": raw(b'{"x": ' + b"9" * 100_000 + b"}"),
    "twice": raw(b'{"x": {"dtype":"F32","shape":[0],"data_offsets":[0,0]}, "x": 1}'),
    "twice inside": raw(b'{"x": {"dtype":"F32","shape":[0],"shape":[0],"data_offsets":[0,0]}}'),
    "an entry that is none": raw({"x": 3}),
    "an entry with less": raw({"x": {"dtype": "F32", "shape": [2]}}, bytes(8)),
    "an entry with more": raw(one(more=1), bytes(8)),
    "an unknown dtype": raw(one(dtype="F31"), bytes(8)),
    "a dtype that is none": raw(one(dtype=["F32"]), bytes(8)),
    "a dtype of others": raw(one(dtype="F4", shape=[16]), bytes(8)),
    "a wider dtype": raw(one(dtype="F64"), bytes(8)),
    "a negative size": raw(one(shape=[-2]), bytes(8)),
    "two negative sizes": raw(one(shape=[-1, -2]), bytes(8)),
    "a size that is true": raw(one(shape=[True, 2]), bytes(8)),
    "a size that is a float": raw(one(shape=[2.0]), bytes(8)),
    "a huge size": raw(one(shape=[1 << 62]), bytes(8)),
    "huge sizes": raw(one(shape=[1 << 62, 1 << 62]), bytes(8)),
    "a size that wraps to 2": raw(one(shape=[(1 << 63) + 2]), bytes(8)),
    "nothing in huge sizes": raw(one(shape=[0, 1 << 62, 1 << 62], data_offsets=[0, 0])),
    "a hundred axes": raw(one(shape=[1] * 99 + [2]), bytes(8)),
    "places in the header": raw(one(data_offsets=[-8, 0]), bytes(8)),
    "places turned round": raw(one(data_offsets=[8, 0]), bytes(8)),
    "three places": raw(one(data_offsets=[0, 8, 8]), bytes(8)),
    "places past the end": raw(one(data_offsets=[0, 8]), bytes(7)),
    "bytes at the end": raw(one(), bytes(9)),
    "bytes at the beginning": raw(one(data_offsets=[8, 16]), bytes(16)),
    "overlapping": raw({**one(), "y": one(data_offsets=[4, 12])["x"]}, bytes(12)),
    "the same place": raw({**one(), "y": one()["x"]}, bytes(8)),
    "a hole": raw({**one(), "y": one(data_offsets=[12, 20])["x"]}, bytes(20)),
    "bools that are none": raw(one(dtype="BOOL", shape=[8]), b"\x01\x00\x02\x00" * 2),
    "metadata of numbers": raw({"__metadata__": {"a": 1}, **one()}, bytes(8)),
    "metadata that is a list": raw({"__metadata__": [], **one()}, bytes(8)),
    "a name a terminal would obey": raw({"\x1b[2J\n\u202e": 1}),
    "a long name": raw({"x" * 1_000_000: 1}),
}


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_an_error_that_says_so(tmp_path: Path, case: str, copy: bool):
    path = tmp_path / "hostile"
    path.write_bytes(HOSTILE[case])
    with pytest.raises(FileFormatError, match="not a safetensors file") as caught:
        hf.load(path, copy=copy)
    text = str(caught.value)
    assert len(text) < 2000
    assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_a_file_cut_anywhere_is_an_error_and_a_changed_bit_is_seen_or_is_data(tmp_path: Path):
    path = tmp_path / "one"
    hf.save(path, {"a": np.arange(5), "b": np.ones((2, 2), bool)})
    whole = path.read_bytes()
    start = header_of(path)[0]
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(FileFormatError):
            hf.load(path, copy=True)
    for place in range(start):
        for bit in (1, 4, 128):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            try:
                found = hf.load(path, copy=True)
            except FileFormatError:
                continue
            assert sum(one.size * one.dtype.itemsize for one in found.values()) == len(whole) - start


def test_only_regular_files_are_read(tmp_path: Path):
    with pytest.raises(FileMissingError, match="is not there"):
        hf.load(tmp_path / "none")
    with pytest.raises(FileError, match="is a folder"):
        hf.load(tmp_path)
    with pytest.raises(FileError, match="no name of a file"):
        hf.load("a\0b")
    if os.name == "posix":
        os.mkfifo(tmp_path / "pipe")
        for path in (tmp_path / "pipe", "/dev/zero"):
            with pytest.raises(FileError, match="no regular file"):
                hf.load(path)
        hf.save(tmp_path / "one", {"x": 1})
        (tmp_path / "link").symlink_to(tmp_path / "one")
        assert hf.load(tmp_path / "link")["x"].item() == 1


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what is open")
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path, overwrite: bool):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileError, match="is a device, a pipe or a socket"):
        hf.save(pipe, {"a": hf.ones(2)}, overwrite=overwrite)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [*tmp_path.iterdir()] == [pipe]


def test_an_error_of_the_system_names_the_file(tmp_path: Path):
    """As on a full disk: the system's own error names none."""
    path = tmp_path / "file"
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"), whole_file(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "call",
    [
        hf.load, hf.export.load, lambda path: hf.save(path, {"a": hf.ones(2)}),
        lambda path: hf.export.save(path, hf.compile(lambda x: x), hf.TensorSpec([2])),
        lambda path: hf.export.stablehlo(path, hf.compile(lambda x: x), hf.TensorSpec([2])),
        lambda path: hf.compile(lambda x: x).graph(hf.ones(2)).to_html(path),
    ],
)
def test_a_name_that_no_system_takes_is_cut_in_the_error(call: Any):
    with pytest.raises(OSError, match="File name too long") as raised:
        call("a" * 1_000_000)
    assert len(str(raised.value)) < 5_000


@pytest.mark.always
def test_nothing_stays_open(tmp_path: Path):
    hf.save(tmp_path / "one", {"x": np.zeros(1000)})
    (tmp_path / "bad").write_bytes(b"nonsense")
    gc.collect()  # files that other tests left to it
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        kept = hf.load(tmp_path / "one")
        hf.load(tmp_path / "one", copy=True)
        with pytest.raises(FileFormatError):
            hf.load(tmp_path / "bad")
    del kept
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize(("name", "dtype"), FLOAT8.items())
def test_all_numbers_of_float8_are_read_as_float32(tmp_path: Path, name: str, dtype: Any, copy: bool):
    path, every = tmp_path / "every", np.arange(256, dtype=np.uint8)
    path.write_bytes(raw(one(dtype=name, shape=[16, 16], data_offsets=[0, 256]), every.tobytes()))
    found = hf.load(path, copy=copy)["x"]
    assert found.dtype == hf.float32
    np.testing.assert_array_equal(found.numpy(), every.view(dtype).astype(np.float32).reshape(16, 16))
