"""A link, a folder or a pipe in place of a sidecar: `verify` and `recover` report it, `--apply` moves it aside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from messagestore import MessageStore
from messagestore import sidecar as rocket_names
from rabbitstore import RabbitStore
from rabbitstore.format import layout as rabbit_names
from storageio import REAL_DISK, Kind, misplaced
from tests.brokerstore.tool import run
from tests.faults.test_hostile_folders import made_message
from tests.stores import small_config

pytestmark = pytest.mark.default

SIZES = small_config(max_index_num=200)
FILES = ["clean.json", "index.json", "queues.json", "doubt.json", "delays.json", "ring", "clean.json.new",
         "cut-00000000000000000000-0", "recover-1700000000000.json", "sink/job/commit.json", "sink-queries/q"]  # fmt: skip
FOLDERS = ["strays", "rebuild", "rebuild-batch", "rebuild-spark-1", "replaced-consumequeue", "replaced-index", "sink",
           "sink-queries"]  # fmt: skip
RABBIT_FILES = ["lock", "queues.json", "clean_stop.json", "queues.json.new"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Make a store, stopped cleanly, beside a folder that must stay unchanged."""
    (tmp_path / "precious").mkdir(exist_ok=True)
    (tmp_path / "precious" / "file").write_bytes(b'{"end_offset": 1}' * 500)
    folder = tmp_path / "store"
    with MessageStore.open(folder, "a", SIZES) as made:
        for number in range(20):
            made.put(made_message(number))  # type: ignore[arg-type]
    return folder


@pytest.fixture
def vhost(tmp_path: Path) -> Path:
    """Make a virtual host beside a folder that must stay unchanged."""
    (tmp_path / "precious").mkdir(exist_ok=True)
    (tmp_path / "precious" / "file").write_bytes(b"precious" * 500)
    with RabbitStore.open(tmp_path / "vhost") as made:
        made.declare_queue("q")
        made.publish("q", b"b")
    return tmp_path / "vhost"


def link_to_a_file(path: Path) -> None:
    """Link to a file outside of the store."""
    path.symlink_to(_above(path) / "precious" / "file")


def link_to_a_folder(path: Path) -> None:
    """Link to a folder outside of the store."""
    path.symlink_to(_above(path) / "precious")


def link_to_nothing(path: Path) -> None:
    """Link to a missing path: writing through it would create a file."""
    path.symlink_to(_above(path) / "made")


def pipe(path: Path) -> None:
    """Make a pipe: opening it would block."""
    os.mkfifo(path)


def folder(path: Path) -> None:
    """Make a folder with a file in it."""
    path.mkdir()
    (path / "inside").write_bytes(b"x")


def file(path: Path) -> None:
    """Make a file of one byte."""
    path.write_bytes(b"x")


def _above(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.name in ("store", "vhost")).parent


OTHERS: list[Callable[[Path], None]] = [link_to_a_file, link_to_a_folder, link_to_nothing, pipe]


def outside(position: Path) -> dict[str, bytes]:
    """Return the names and files beside the store's folder."""
    kept = {str(path): path.read_bytes() for path in (position.parent / "precious").rglob("*") if path.is_file()}
    return kept | {"names": " ".join(sorted(os.listdir(position.parent))).encode()}


def swap_in(position: Path, name: str, strange: Callable[[Path], None]) -> Path:
    """Replace a sidecar by something else."""
    path = position / "brokerstore" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    strange(path)
    return path


def kinds(ran: Any) -> list[tuple[str, str]]:
    """Return (kind, file) of each problem."""
    return [(problem["kind"], problem["file"]) for problem in ran.json["problems"]]


def check_moved(position: Path, paths: list[Path], before: dict[str, bytes]) -> None:
    """Assert that the paths are reported and moved aside unchanged, and that nothing outside changes."""
    was = [(os.lstat(path).st_ino, os.lstat(path).st_mode) for path in paths]
    found = kinds(run("verify", position, "--json"))
    assert [path for path in paths if ("strange_sidecar", str(path)) not in found] == []
    plan = run("recover", position)
    assert plan.code == 1
    moved = {words[1] for line in plan.out.splitlines() if (words := line.split())[:1] == ["move_aside"]}
    assert {str(path.relative_to(position)) for path in paths} <= moved
    assert [(os.lstat(path).st_ino, os.lstat(path).st_mode) for path in paths] == was, "a plan changes nothing"
    done = run("recover", position, "--apply")
    assert done.code == 7, done.talk
    asides = [next(path.parent.glob(f"{path.name}.aside-*")) for path in paths]
    assert [(os.lstat(path).st_ino, os.lstat(path).st_mode) for path in asides] == was
    assert run("verify", position).code == 0
    assert run("recover", position).code == 0
    assert outside(position) == before


@pytest.mark.parametrize("strange", [*OTHERS, folder], ids=lambda strange: strange.__name__)
def test_a_store_with_a_sidecar_replaced_by_another_file_type_can_be_written(
    store: Path, strange: Callable[[Path], None]
) -> None:
    """With each kind of sidecar replaced, messages stay, and the store can be written again."""
    before = outside(store)
    check_moved(store, [swap_in(store, name, strange) for name in FILES], before)
    with MessageStore.open(store, "a", SIZES) as opened:
        assert opened.put(made_message(20)).queue_offset == 20  # type: ignore[arg-type]
    assert run("dump", store, "--json").out.count("\n") == 21


@pytest.mark.parametrize("strange", [*OTHERS, file], ids=lambda strange: strange.__name__)
def test_a_sidecar_folder_replaced_by_a_symlink_is_not_written_through(store: Path, strange: Callable[[Path], None]) -> None:
    """Strays, rebuilt queues and parts of a sink would be written through a link."""
    before = outside(store)
    check_moved(store, [swap_in(store, name, strange) for name in FOLDERS], before)
    check_moved(store, [swap_in(store, "sink/job", strange)], before)


def test_a_stray_file_is_not_moved_through_a_symlink(store: Path) -> None:
    """The link at `strays` is moved aside first."""
    before = outside(store)
    (store / "commitlog" / "notes.txt").write_bytes(b"stray")
    swap_in(store, "strays", link_to_a_folder)
    assert run("recover", store, "--apply").code == 7
    assert (store / "brokerstore" / "strays" / "notes.txt").read_bytes() == b"stray"
    assert outside(store) == before


def test_a_file_named_like_the_sidecar_folder_is_moved_aside(store: Path) -> None:
    """The file `brokerstore` is moved aside as a whole."""
    shutil.rmtree(store / "brokerstore")
    (store / "brokerstore").write_bytes(b"x")
    assert ("strange_sidecar", str(store / "brokerstore")) in kinds(run("verify", store, "--json"))
    assert run("recover", store, "--apply").code == 7
    assert (store / "brokerstore.aside-0").read_bytes() == b"x"
    assert run("verify", store).code == 0


def test_an_unreadable_marker_of_a_failed_sync_still_counts(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable marker of a failed sync makes the next opening rewrite the whole log."""
    from messagestore.write import sync_failure as marker

    again: list[tuple[str, int]] = []
    real = marker._write_again
    monkeypatch.setattr(
        marker, "_write_again", lambda disk, path, start: (again.append((path, start)), real(disk, path, start))
    )
    swap_in(store, "doubt.json", folder)
    assert run("recover", store, "--apply").code == 7
    assert (str(store / "commitlog" / f"{0:020d}"), 0) in again
    assert not (store / "brokerstore" / "doubt.json").exists()


def test_verify_accepts_a_symlink_as_a_recovery_backup(store: Path) -> None:
    """A backup may be a link that stood in place of a folder of the store."""
    swap_in(store, "kept-consumequeue-0", link_to_a_folder)
    assert run("verify", store).code == 0


@pytest.mark.parametrize("name", ["clean.json", "queues.json", "doubt.json", "ring", "clean.json.new"])
def test_a_put_that_fails_on_a_replaced_sidecar_suggests_recover(store: Path, name: str) -> None:
    """The error suggests `recover`, not a fault of the disk; after the recovery puts work."""
    swap_in(store, name, folder)
    refused = run("put", store, "T", "body")
    assert refused.code == 5 and f"run: brokerstore recover {store}  (with --apply, moves aside" in refused.talk
    assert run("recover", store, "--apply").code == 7
    assert run("put", store, "T", "body").code == 0
    assert run("verify", store).code == 0


def test_a_link_of_any_name_is_reported(store: Path) -> None:
    """A later version may use the name; other files and folders are left alone."""
    (store / "brokerstore" / "unknown.json").write_bytes(b"{}")
    (store / "brokerstore" / "unknown").mkdir()
    assert run("verify", store).code == 0
    check_moved(store, [swap_in(store, "later.json", link_to_a_file)], outside(store))


@pytest.mark.parametrize("strange", [*OTHERS, folder], ids=lambda strange: strange.__name__)
def test_rabbitmq_sidecars_replaced_by_another_file_type_are_moved_aside(vhost: Path, strange: Callable[[Path], None]) -> None:
    """The sidecars in a virtual host's folder, the lock among them, are moved aside."""
    before = outside(vhost)
    paths = [swap_in(vhost, name, strange) for name in RABBIT_FILES]
    was = [os.lstat(path).st_ino for path in paths]
    names = {f"brokerstore/{name}" for name in RABBIT_FILES}
    assert set(kinds(run("verify", vhost, "--json"))) == {("strange_sidecar", name) for name in names}
    plan = run("recover", vhost, "--json")
    assert plan.code == 1
    assert {(step["kind"], step["file"]) for step in plan.json["plan"]["actions"]} == {("move_aside", name) for name in names}
    assert run("recover", vhost, "--apply").code == 7
    assert [os.lstat(next(path.parent.glob(f"{path.name}.aside-*"))).st_ino for path in paths] == was
    assert run("verify", vhost).code == 0
    assert outside(vhost) == before
    assert run("dump", vhost, "--json").out.count("\n") == 1


@pytest.mark.parametrize("strange", [*OTHERS, file], ids=lambda strange: strange.__name__)
def test_kept_bytes_are_not_written_through_a_symlink(vhost: Path, strange: Callable[[Path], None]) -> None:
    """`recover` keeps cut bytes below `brokerstore/cut`."""
    before = outside(vhost)
    swap_in(vhost, "cut", strange)
    (vhost / "msg_store_persistent" / "clean.dot").write_bytes(b"x")
    assert run("recover", vhost, "--apply").code in (6, 7)
    assert list((vhost / "brokerstore" / "cut").iterdir())
    assert run("verify", vhost).code == 0
    assert outside(vhost) == before


def test_the_tables_have_every_name_that_is_written(store: Path, vhost: Path) -> None:
    """A new kind of sidecar must be added to its table."""
    run("recover", store, "--apply")
    (store / "abort").touch()
    (store / "commitlog" / "notes.txt").write_bytes(b"stray")
    run("recover", store, "--apply")
    run("rebuild", "--apply", store, "all")
    tables = (store, rocket_names.OWN_FILES), (vhost, rabbit_names.SIDECAR_FILES)
    for position, table in tables:
        own = position / "brokerstore"
        for path in own.iterdir():
            pattern = misplaced.pattern_of((path.name,), table)
            assert pattern is not None, f"{path.name} is in no table"
            assert table[pattern] in (None, Kind.FOLDER if path.is_dir() else Kind.FILE)
        assert list(misplaced.find(REAL_DISK, str(own), table)) == []
    from messagestore import clean_stop, store_settings
    from messagestore import index_hint as index_sidecar
    from messagestore.broker.services import delay_resume
    from messagestore.recovery import queue_list
    from messagestore.write import ring
    from messagestore.write import sync_failure as marker

    names = [
        marker.NAME,
        index_sidecar.NAME,
        queue_list.NAME,
        clean_stop.CLEAN_NAME,
        ring.RING_NAME,
        delay_resume.NAME,
        store_settings.NAME,
    ]
    assert all(rocket_names.OWN_FILES[name] is Kind.FILE for name in names)
