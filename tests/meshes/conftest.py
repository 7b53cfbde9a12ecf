"""The tests in this folder need several devices: `test_mesh.py` runs them in a process that has them."""

from __future__ import annotations

import os

import pytest

import hybridflow as hf

DEVICES = os.environ.get("HYBRIDFLOW_TEST_DEVICES")
if DEVICES is not None:
    hf.distribute.cpu_devices(int(DEVICES))


@pytest.fixture
def mesh() -> hf.Mesh:
    """A mesh of all devices."""
    return hf.Mesh({"data": -1})
