"""What every test may use."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("BROKERSTORE_CHECK", "1")  # before storageio is imported

from tests import archives
from tests.builds import BUILDS, World, is_compiled_here, load

DATA = Path(__file__).parent / "data"


@pytest.fixture(params=BUILDS)
def world(request: pytest.FixtureRequest) -> World:
    """The packages, once compiled and once plain; an installation without compiled kernels tests the plain ones alone."""
    if request.param == "compiled" and not is_compiled_here():
        pytest.skip("the kernels are not compiled here")
    return load(request.param)


class Fixture:
    """A store that a real system wrote, with the truth about it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"

    def truth(self, name: str = "manifest.json") -> Any:
        return json.loads((self.folder / name).read_text())


@pytest.fixture(scope="session")
def _unpacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


@pytest.fixture
def fixture_store(_unpacked: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`fixture_store(name)`: shared and unpacked once, for reading only; with `own=True` a copy of one's own."""

    def unpack(name: str, own: bool = False) -> Fixture:
        if own or name not in _unpacked:
            folder = tmp_path_factory.mktemp(name)
            archives.unpack(DATA / f"{name}.tar.xz", folder)
            if own:
                return Fixture(folder / name)
            _unpacked[name] = folder / name
        return Fixture(_unpacked[name])

    return unpack


@pytest.fixture
def quiet() -> Iterator[None]:
    """What stores say of damage goes nowhere while the test runs, and to the next test again."""
    loggers = [logging.getLogger(name) for name in ("brokerstore", "consumequeue", "messagestore")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)
