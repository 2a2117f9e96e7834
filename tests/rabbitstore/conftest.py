"""Folders of the real server, unpacked once."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from storageio import DiskError, Mode
from storageio.testing import CountingDisk, FailingDisk, WrappedDisk
from storageio.testing.wrapped import WrappedFile
from tests.archives import unpack

DATA = Path(__file__).resolve().parent.parent / "data"


class Fixture(NamedTuple):
    kind: str
    vhost: Path
    manifest: dict[str, Any]


READS = {"open", "list", "stat", "size", "read", "map", "lock"}


class TornFile(WrappedFile):
    """The process dies during a write, of which the first half reaches the file."""

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        try:
            self._disk.before("write", self.path)
        except DiskError:
            if len(self._disk.calls) == self._disk.fail_at:
                self._inner.write(offset, bytes(data)[: len(data) // 2])
            raise
        self._inner.write(offset, data)


class ChangesFail(FailingDisk):
    """Only calls that change something are counted and fail."""

    def before(self, operation: str, path: str) -> None:
        if operation not in READS:
            super().before(operation, path)

    def open(self, path: str, mode: Mode) -> Any:
        self.before("create" if mode is Mode.CREATE else "open", path)
        return TornFile(self, self.inner.open(path, mode), path)


class FailsOnce(WrappedDisk):
    """A disk on which one read of a message file can fail."""

    will_fail = False

    def before(self, operation: str, path: str) -> None:
        if self.will_fail and operation == "read" and path.endswith(".rdq"):
            self.will_fail = False
            raise DiskError(operation, path, errno.EIO, "input/output error")


class WhenItWasWritten(CountingDisk):
    """A disk whose clock shows the time when the server's folders were made: some of their messages expire."""

    def now_ms(self) -> int:
        return 1_795_272_400_000


@pytest.fixture(scope="session")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fixture]:
    found = {}
    for kind in ("clean", "v2"):
        folder = tmp_path_factory.mktemp(kind)
        unpack(DATA / f"rabbitmq-{kind}.tar.xz", folder)
        found[kind] = Fixture(kind, folder / "vhost", json.loads((folder / "manifest.json").read_text()))
    return found


@pytest.fixture
def clean(fixtures: dict[str, Fixture]) -> Fixture:
    return fixtures["clean"]


@pytest.fixture(params=["clean", "v2"])
def either(request: pytest.FixtureRequest, fixtures: dict[str, Fixture]) -> Fixture:
    return fixtures[request.param]


@pytest.fixture
def folder(clean: Fixture, tmp_path: Path) -> Path:
    """Return a copy of the server's folder after a clean stop."""
    return Path(shutil.copytree(clean.vhost, tmp_path / "vhost"))
