"""One file that cannot be read hides no damage of the others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from messagestore.repair.recover import Recovery
from messagestore.repair.verification import StoreReport, verify_store
from tests.cases import unpack_case

HIDDEN = {"consumequeue/LiveNormal/0", "consumequeue/LiveTran/0"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return the reported store without its unreadable index file: two queues are damaged."""
    folder = unpack_case("unreadable-file-hides", tmp_path).folder
    next(path for path in (folder / "index").iterdir() if not path.stat().st_size).unlink()
    return folder


def make_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def make_file(path: Path, data: bytes = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


KINDS = {
    "empty index file": ("index/20261120190000000", make_file),
    "short index file": ("index/20261120190000000", lambda path: make_file(path, bytes(100))),
    "folder in the index": ("index/20261120190000001", make_folder),
    "long queue file": ("consumequeue/LiveOrder/1/00000000000000000000", lambda path: make_file(path, bytes(999))),
    "foreign file in a queue": ("consumequeue/LiveOrder/1/notes.txt", make_file),
    "folder for a queue file": ("consumequeue/LiveOrder/1/00000000000000000000", make_folder),
    "unreadable batch queue": ("batchconsumequeue/B/0/stray.txt", make_file),
    "folder for a config file": ("config/consumerFilter.json", make_folder),
    "folder for the checkpoint": ("checkpoint", make_folder),
}


def named(report: StoreReport, store: Path) -> set[str]:
    return {problem.file.removeprefix(f"{store}/") for problem in report.problems}


@pytest.mark.parametrize("kind", KINDS)
def test_every_damaged_queue_is_named_beside_an_unreadable_file(store: Path, kind: str) -> None:
    """All other queues are compared too."""
    name, damage = KINDS[kind]
    damage(store / name)
    report = verify_store(str(store))
    assert named(report, store) >= HIDDEN and report.queues >= 36
    if kind != "folder in the index":
        assert any(name.startswith(file) for file in named(report, store) - HIDDEN)


def test_nfs_remnant_of_a_deleted_file_hides_no_damage(store: Path) -> None:
    """A client of NFS keeps a deleted file that is open under such a name, until it is closed."""
    for folder in ("consumequeue/LiveOrder/1", "index", "commitlog"):
        (store / folder / ".nfs000000000000abcd00000001").write_bytes(bytes(20))
    report = verify_store(str(store))
    assert named(report, store) == HIDDEN
    Recovery(str(store)).apply()
    assert verify_store(str(store)).is_ok


def test_the_reported_store_is_repaired(tmp_path: Path) -> None:
    """The plan rebuilds what is damaged."""
    store = unpack_case("unreadable-file-hides", tmp_path).folder
    assert named(verify_store(str(store)), store) >= HIDDEN | {"index/20261120190000000"}
    Recovery(str(store)).apply()
    assert verify_store(str(store)).is_ok
    shutil.rmtree(store)
