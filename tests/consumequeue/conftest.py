"""Fixture stores, and queues in a fresh folder."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

DATA = Path(__file__).resolve().parent.parent / "data"


class Fixture(NamedTuple):
    """A store that a real system wrote, and what it says about it."""

    store: Path
    manifest: dict[str, Any]


@pytest.fixture(scope="session")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Fixture]:
    """Unpack a fixture by name, once a session.  Tests must not change it."""
    place = tmp_path_factory.mktemp("stores")

    def unpack(name: str) -> Fixture:
        if not (place / name).exists():
            with tarfile.open(DATA / f"{name}.tar.xz") as archive:
                archive.extractall(place, filter="data")
        return Fixture(place / name / "store", json.loads((place / name / "manifest.json").read_text()))

    return unpack


def read_folder(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def files_of() -> Callable[[Path], dict[str, bytes]]:
    return read_folder


@pytest.fixture
def queues(tmp_path: Path) -> Callable[..., Any]:
    """Open the set in `tmp_path`, files of ten units unless said otherwise."""
    from consumequeue import ConsumeQueues
    from storageio import REAL_DISK

    def make(units: int = 10, writable: bool = True, disk: Any = REAL_DISK, folder: Path | None = None) -> Any:
        place = folder or tmp_path / "consumequeue"
        return ConsumeQueues(disk, str(place), writable=writable, file_size_bytes=units * 20)

    return make
