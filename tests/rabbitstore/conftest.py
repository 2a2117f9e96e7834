"""The real server's folders, unpacked once."""

import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from storageio.testing import CountingDisk

DATA = Path(__file__).resolve().parent.parent / "data"


class Fixture(NamedTuple):
    kind: str
    vhost: Path
    manifest: dict[str, Any]


class WhenItWasWritten(CountingDisk):
    """A disk whose clock stands where it stood when the server's folders were made: some of their messages expire."""

    def now_ms(self) -> int:
        return 1_795_272_400_000


@pytest.fixture(scope="session")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fixture]:
    found = {}
    for kind in ("clean", "v2"):
        folder = tmp_path_factory.mktemp(kind)
        with tarfile.open(DATA / f"rabbitmq-{kind}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        found[kind] = Fixture(kind, folder / "vhost", json.loads((folder / "manifest.json").read_text()))
    return found


@pytest.fixture
def clean(fixtures: dict[str, Fixture]) -> Fixture:
    return fixtures["clean"]


@pytest.fixture(params=["clean", "v2"])
def either(request: pytest.FixtureRequest, fixtures: dict[str, Fixture]) -> Fixture:
    return fixtures[request.param]
