"""Many devices: runs each file of tests/meshes in a process with eight CPU devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import run_python

FILES = sorted((Path(__file__).parent / "meshes").glob("mesh_*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_on_eight_devices(file):
    command = [sys.executable, "-m", "pytest", str(file), "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, cwd=Path(__file__).parent.parent,
        env={**os.environ, "HYBRIDFLOW_TEST_DEVICES": "8"},
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_devices_are_asked_for_before_one_is_used():
    code = """
    import hybridflow as hf
    hf.distribute.cpu_devices(4)
    hf.distribute.cpu_devices(2)
    assert hf.Mesh({"data": -1}).shape == {"data": 2}
    hf.distribute.cpu_devices(2)
    try:
        hf.distribute.cpu_devices(8)
    except hf.LayoutError:
        raise
    except RuntimeError as error:
        print(error)
    try:
        hf.Mesh({"data": 3})
    except hf.LayoutError as error:
        print(error)
    """
    printed = run_python(code)
    assert "cpu_devices: a device was used before, when there were 2" in printed
    assert "Call it at the start of the program" in printed
    assert "Mesh: {'data': 3} needs 3 devices, there are 2" in printed


@pytest.mark.parametrize(("count", "error"), [(0, ValueError), (2.0, TypeError), (True, TypeError)])
def test_a_number_of_devices_is_an_integer(count, error):
    import hybridflow as hf

    with pytest.raises(error, match="cpu_devices"):
        hf.distribute.cpu_devices(count)
