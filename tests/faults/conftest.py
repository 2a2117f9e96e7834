"""Fixture for the compiled fault shim."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the compiled `fault_shim.c`."""
    if sys.platform != "linux" or shutil.which("gcc") is None:
        pytest.skip("the shim is made by gcc and put before the library on Linux")
    path = tmp_path_factory.mktemp("shim") / "shim.so"
    source = Path(__file__).with_name("fault_shim.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-w", "-o", str(path), str(source), "-ldl"], check=True)
    return path
