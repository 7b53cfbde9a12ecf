"""Each public name of PyTorch, Keras, TensorFlow, JAX, NumPy, SciPy and optax works here or has an answer."""

from __future__ import annotations

import functools
import importlib
import re
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridflow as hf
from hybridflow import foreign
from hybridflow.core.errors import ForeignNameError
from hybridflow.core.foreign_families import FAMILIES

OBJECTS = {"x": hf.asarray([[1.0]]), "model": hf.nn.Identity(), "opt": hf.optim.SGD([hf.Variable([1.0])], 0.1)}
INSTALLED = {
    "numpy": "hf", "numpy.linalg": "hf.linalg", "numpy.fft": "hf.fft", "numpy.random": "hf.random",
    "numpy.ndarray": "x", "scipy.special": "hf.special", "jax": "hf", "jax.numpy": "hf", "jax.nn": "hf.nn",
    "jax.lax": "hf", "jax.random": "hf.random", "jax.numpy.linalg": "hf.linalg", "jax.numpy.fft": "hf.fft",
    "jax.scipy.special": "hf.special",
    "jax.nn.initializers": "hf.nn.init", "jax.tree_util": "hf.tree", "jax.tree": "hf.tree", "jax.Array": "x",
}
STORED = {
    "torch": "hf", "torch.Tensor": "x", "torch.nn": "hf.nn", "torch.nn.functional": "hf.nn",
    "torch.nn.init": "hf.nn.init", "torch.nn.Module": "model", "torch.optim": "hf.optim",
    "torch.optim.Optimizer": "opt", "torch.optim.lr_scheduler": "hf.optim", "torch.utils.data": "hf.data",
    "torch.special": "hf.special", "keras": "hf", "keras.layers": "hf.nn", "keras.losses": "hf.nn",
    "keras.metrics": "hf.metrics", "keras.callbacks": "hf.train", "keras.optimizers": "hf.optim",
    "keras.optimizers.schedules": "hf.optim", "keras.initializers": "hf.nn.init", "keras.regularizers": "hf.nn",
    "keras.activations": "hf.nn", "keras.ops": "hf", "keras.Model": "model", "keras.Optimizer": "opt",
    "tensorflow": "hf", "tensorflow.nn": "hf.nn", "tensorflow.math": "hf", "tensorflow.linalg": "hf.linalg",
    "tensorflow.random": "hf.random", "tensorflow.data": "hf.data", "tensorflow.debugging": "hf.debugging",
    "tensorflow.train": "hf.train", "tensorflow.config": "hf.config", "optax": "hf.optim",
}
ANSWER = re.compile(r"Did you mean hf|Use |There is none here|JAX has it|takes x\.numpy\(\)|knows nothing of tensors")


def at(path):
    return OBJECTS.get(path) or functools.reduce(getattr, path.split(".")[1:], hf)


@functools.cache
def stored():
    """Return the names in ``peers.txt`` by the part of the package that has them."""
    text = Path(__file__).with_name("peers.txt").read_text(encoding="utf-8")
    parts = re.split(r"^\[(.*)\]$", text, flags=re.MULTILINE)
    return {part: names.split() for part, names in zip(parts[1::2], parts[2::2], strict=True)}


def installed(part):
    """Return the public names of a module or class, without the modules of other packages that it imports."""
    if part == "jax.Array":
        return [name for name in dir(type(jnp.zeros(1))) if not name.startswith("_")]
    *_, last = part.split(".")
    value = np.ndarray if last == "ndarray" else importlib.import_module(part)
    names = [name for name in getattr(value, "__all__", dir(value)) if not name.startswith("_")]
    found = {name: vars(value).get(name) for name in names}
    return [name for name, one in found.items()
            if not isinstance(one, types.ModuleType) or one.__name__.startswith(part.split(".")[0])]


def answer(path, name):
    """Return the text of the error of a name that does not work, or None."""
    try:
        getattr(at(path), name)
    except AttributeError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("part", "path"), [*INSTALLED.items(), *STORED.items()])
def test_every_name_of_a_peer_works_or_has_an_answer(part, path):
    names = stored()[part] if part in STORED else installed(part)
    texts = {name: answer(path, name) for name in names}
    bare = {name: text for name, text in texts.items() if text is not None and not ANSWER.search(text)}
    assert len(names) > 6
    assert not bare, "hint them: core/foreign_families.py"


def test_a_name_of_no_package_has_no_answer():
    for path in ("hf", "hf.nn", "hf.optim", "hf.metrics"):
        assert not ANSWER.search(answer(path, "zzyzx_of_nobody"))


def test_an_expression_for_any_word_answers_in_its_own_modules_only():
    made = [(family.owners.split(), re.sub(r"\\w[+*]", "zzyzx", one)) for family in FAMILIES
            for one in family.names.split() if "\\w" in one]
    names = [(owners, name) for owners, name in made if name.isidentifier() and name.islower()]
    wrong = [(path, name, text) for owners, name in names for path in public_modules()
             if path not in owners and foreign.hint_of(path, name) is None
             and "it is a name of" in (text := answer(path, name) or "")]
    assert len(names) > 40
    assert not wrong


def public_modules():
    found = {f"hf.{name}": getattr(hf, name) for name in dir(hf)}
    modules = {path: one for path, one in found.items() if isinstance(one, types.ModuleType)}
    return {"hf": hf, "hf.nn.init": hf.nn.init, **modules}


def test_letters_that_are_swapped_are_found_in_every_public_module():
    wrong, tried = [], 0
    for path, module in public_modules().items():
        names = [name for name in dir(module) if not name.startswith("_") and len(name) > 3]
        for name in names:
            at = len(name) // 2
            typo = name[: at - 1] + name[at] + name[at - 1] + name[at + 1 :]
            if typo not in names and typo.isidentifier() and typo.lower() != name.lower():
                tried += 1
                if f"Did you mean {path}.{name}?" not in (answer(path, typo) or ""):
                    wrong.append((path, typo, answer(path, typo)))
    assert tried > 600
    assert not wrong


def test_a_name_that_is_sought_in_another_module_has_its_own_answer():
    told = r"Use |There is none|JAX has it|takes x\.numpy\(\)|knows nothing of tensors"
    wrong = []
    for owner, _, name in [one.rpartition(".") for one in foreign.rows() if one.startswith("hf.")]:
        for path in ("hf", "hf.optim"):
            text = answer(path, name)
            if text is not None and not re.search(rf"{told}|\.{name}\?", text, re.IGNORECASE):
                wrong.append((owner, path, text))
    assert not wrong
    for path, name, said in [
        ("hf", "ModelCheckpoint", "restore_best"), ("hf", "EarlyStopping", "callbacks="),
        ("hf", "DataLoader", "Batches"), ("hf", "tree_map", "hf.tree.map"), ("hf", "functional_call", "hf.grad"),
        ("hf.models", "load_model", "into="), ("hf.nn", "pack_padded_sequence", "lengths="),
        ("hf.data", "Adam", "Did you mean hf.optim.Adam?"),
        ("hf", "layrs", "Did you mean hf.layers? Use hf.nn"),
    ]:
        assert said in answer(path, name), (path, name)


def test_the_names_in_the_tables_of_the_readme_have_an_answer():
    page = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ([^|]*`[^|]*) \|[^|]*\|$", page, re.MULTILINE)
    names = {name for cell in cells for code in re.findall(r"`([^`]+)`", cell)
             for name in re.findall(r"\b(?:[A-Z][a-z]+(?:[A-Z]\w*)+|\w+_process_group)\b", code)}
    bare = {name: text for name in names if (text := answer("hf", name)) is not None and not ANSWER.search(text)}
    assert len(names) > 9
    assert not bare, "hint them: core/foreign_families.py"


def test_what_answers_name_is_there():
    own = {f"{path}.{name}" for path in ("hf", *later_paths()) for name in dir(at(path))}
    for part, path in STORED.items():
        for name in stored()[part]:
            hint = foreign.hint_of(path, name)
            for named in re.findall(r"\b(?:hf|jax)(?:\.\w+)+", hint.ours if hint is not None else ""):
                if named.startswith("jax."):
                    module, _, last = named.rpartition(".")
                    assert hasattr(importlib.import_module(module), last), f"{path}.{name}: {named}"
                else:
                    assert named in own or eval(named, {"hf": hf}) is not None, f"{path}.{name}: {named}"


def later_paths():
    return ("hf.nn", "hf.nn.init", "hf.optim", "hf.random", "hf.linalg", "hf.metrics", "hf.train", "hf.data")


def test_families_have_no_name_of_ours():
    for owner in ("x", "model", "opt"):
        own = {*dir(OBJECTS[owner])}
        named = {name for family in FAMILIES if owner in family.owners.split() for name in family.names.split()}
        assert not named & own, owner
        for name in filter(str.isidentifier, named):
            with pytest.raises(ForeignNameError):
                getattr(OBJECTS[owner], name)


ARRAYS = [np.array([[0.3, 0.6], [0.2, 0.9]], np.float32), np.array([0.3, 0.6], np.float32), np.array([1, 2], np.int32)]
SAMPLES = [(array,) * n for n in (1, 2) for array in ARRAYS]


def test_functions_of_jax_are_operations_as_the_answer_says():
    """Call the functions that answers name with arrays, if they take only arrays: an operation gives JAX's result."""
    tried = set()
    for name in [*installed("jax.scipy.special")[::6], *installed("jax.nn")[::3], *installed("jax.numpy")[::15]]:
        found = re.search(r"JAX has it, and hf\.from_jax\((jax\.[\w.]+)\)", answer("hf", name) or "")
        function = eval(found[1], {"jax": jax}) if found is not None else None
        for sample in SAMPLES if function is not None else ():
            try:
                expected = jax.tree.leaves(function(*map(jnp.asarray, sample)))
            except (TypeError, ValueError):  # it takes other arguments
                continue
            got = jax.tree.leaves(hf.from_jax(function)(*map(hf.asarray, sample)))
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=name)
            tried.add(name)
            break
    assert len(tried) > 8
