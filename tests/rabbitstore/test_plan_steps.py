"""Each step of a repair, alone and as the last one before a kill: the next recovery completes the repair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from fuzz.node_folders import ROOT as NODE
from fuzz.node_folders import TIME_MS, SmallNode
from rabbitstore import IndexSettings, RabbitSettings, RabbitStore, apply_recovery, verify
from rabbitstore.engine.opening import VhostOpening
from rabbitstore.format.layout import TRANSIENT_FOLDER
from rabbitstore.node_folder import NodeFolder
from rabbitstore.read.vhost_folder import VhostFolder, find_vhost
from rabbitstore.repair.recover import RabbitRecovery
from storageio import Disk
from storageio.testing import ForgettingDisk, Image
from storebytes.plan import Step
from tests.packaging.kinds import STEPS, Kinds

VHOST = "/vhost"
COUNT = 40
OPENING = ["make_folders", "delete_clean_stop", "delete_transient", "load_queues", "write_declarations"]
Files = dict[str, bytes]


class Case(NamedTuple):
    """A damaged folder and the kinds of steps that its plan must have."""

    root: str
    image: Image
    kinds: set[str]

    def disk(self) -> ForgettingDisk:
        return ForgettingDisk.of(self.image, TIME_MS)


class State(NamedTuple):
    """What a folder has: its messages with queue and body, and the kinds of its problems."""

    messages: Counter[tuple[str, bytes]]
    problems: Counter[str]


def state_of(root: str, disk: Disk) -> State:
    """Read every message and verify everything; a message that a start would drop does not count."""
    vhost = find_vhost(root, None, disk)
    with closing(VhostFolder(vhost, disk)) as folder:
        messages = Counter((one.queue, one.body) for one in folder.messages())
    problems = Counter(one.kind for one in verify(vhost, disk).problems)
    if root == NODE:
        with closing(NodeFolder(root, "/", disk)) as node:
            messages.update((one.queue, one.body) for one in node.messages() if not getattr(one, "reason", ""))
            problems.update(one.kind for one in node.check().problems)
    return State(messages, problems)


def vhost_image(path: Path, version: int, *, is_clean: bool) -> Image:
    """Return a folder with embedded and stored messages in two queues; an unclean one still has its journals."""
    index = IndexSettings(segment_entries=16)
    store = RabbitStore.open(path, settings=RabbitSettings(background=False, index_version=version, index=index))
    for name in ("first", "second"):
        store.declare_queue(name)
        for number in range(COUNT):
            store.publish(name, b"%d" % number * (3000 if number % 3 == 0 else 30), routing_keys=[name])
    for _ in range(5):
        store.get("second", auto_ack=True)
    store.sync()
    if is_clean:
        store.close()
    else:
        store.abandon()
    files = {f"{VHOST}/{file.relative_to(path)}": file.read_bytes() for file in path.rglob("*") if file.is_file()}
    folders = [VHOST, *(f"{VHOST}/{file.relative_to(path)}" for file in path.rglob("*") if file.is_dir())]
    return Image(files, tuple(sorted(folders)), dict.fromkeys(files, TIME_MS))


def file_of(files: Files, ending: str, part: str = "") -> str:
    """Return the first file whose name ends so and contains `part`."""
    return next(name for name in sorted(files) if name.endswith(ending) and part in name)


def flip(files: Files, name: str, at: int) -> None:
    data = bytearray(files[name])
    data[at] ^= 1
    files[name] = bytes(data)


def damage_vhost(files: Files) -> None:
    """Damage each kind of file of a folder with index version 1."""
    records = file_of(files, "0.rdq")
    files[records.replace(".rdq", ".rdt")] = files[records][: len(files[records]) // 2]
    flip(files, records, len(files[records]) - 4000)
    files[records] += b"torn"
    segments = [name for name in sorted(files) if name.endswith(".idx")]
    files.update({name: files[name][:-20] for name in segments[:1]})
    files[f"{VHOST}/.config"] = b"{segment_entry_count, 0}."
    files[f"{VHOST}/.vhost"] = bytes(4)
    del files[file_of(files, ".queue_name")]


def with_torn_journals(files: Files) -> None:
    """Cut one journal within an entry, and overwrite the other with zeros."""
    first, second = (name for name in sorted(files) if name.endswith("journal.jif"))
    files[first] = files[first][:-3]
    files[second] = bytes(len(files[second]))


def with_lost_messages(files: Files) -> None:
    """Remove the message file; entries of its messages stay."""
    del files[file_of(files, "0.rdq")]


def with_a_folder_as_lock(files: Files) -> None:
    """Put a folder in the place of the lock, with a file in it, and tear a message file."""
    files.pop(f"{VHOST}/brokerstore/lock", None)
    files[f"{VHOST}/brokerstore/lock/x"] = b""
    files[file_of(files, "0.rdq")] += b"torn"


def damage_index(files: Files) -> None:
    """Damage the files of index version 2."""
    flip(files, file_of(files, "0.qi"), 3)
    flip(files, file_of(files, "0.qs"), 200)


def damage_logs(files: Files) -> None:
    """Damage a write-ahead log of quorum queues, a state, and chunks and an index of a stream."""
    wal = file_of(files, ".wal", "/quorum/")
    flip(files, wal, len(files[wal]) // 2)
    flip(files, file_of(files, "/snapshot.dat", "/quorum/"), 100)
    segment = file_of(files, ".segment", "/stream/")
    flip(files, segment, len(files[segment]) // 2)
    del files[file_of(files, ".index", "/stream/")]


def damage_tables(files: Files) -> None:
    """Remove a table, a segment and the settings of a queue."""
    del files[file_of(files, "meta.dets", "/quorum/")]
    names = file_of(files, "names.dets", "/quorum/")
    del files[file_of(files, "/config", "/quorum/")]
    del files[file_of(files, ".segment", "/quorum/")]
    assert names


def damage_names(files: Files) -> None:
    """Remove the names of the queues."""
    del files[file_of(files, "names.dets", "/quorum/")]


_CLASSIC = {"rewrite_records", "rewrite_segment", "salvage", "write_config", "write_vhost", "write_name", "delete"}
CASES: dict[str, tuple[int, bool, Callable[[Files], None], set[str]]] = {
    "classic": (1, True, damage_vhost, _CLASSIC),
    "killed": (1, False, damage_vhost, _CLASSIC - {"delete", "rewrite_segment"}),
    "journals": (1, False, with_torn_journals, {"cut_journal", "join_journal"}),
    "messages": (1, True, with_lost_messages, {"drop_entries", "delete"}),
    "lock": (1, True, with_a_folder_as_lock, {"move_aside", "rewrite_records"}),
    "version 2": (2, True, damage_index, {"rewrite_index", "delete"}),
    "version 2, messages": (2, False, with_lost_messages, {"drop_entries"}),
    "logs": (0, True, damage_logs, {"rewrite_wal", "rebuild_log", "move_aside", "rewrite_segment", "make_index"}),
    "tables": (0, True, damage_tables, {"write_meta", "write_config", "commit_staged"}),
    "names": (0, True, damage_names, {"write_names", "commit_staged"}),
}

DEEP = ("tables", "version 2, messages")  # they take longer than all others together


@pytest.fixture(scope="module")
def node() -> Image:
    return SmallNode().image


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.deep if name in DEEP else ()) for name in CASES])
def case(request: pytest.FixtureRequest, tmp_path: Path, node: Image) -> Case:
    version, is_clean, damage, kinds = CASES[request.param]
    image = vhost_image(tmp_path / "vhost", version, is_clean=is_clean) if version else node
    files = dict(image.files)
    damage(files)
    above = {str(folder) for name in files for folder in Path(name).parents if str(folder) != "/"}
    folders = tuple(sorted({*image.folders, *above}))
    return Case(VHOST if version else NODE, Image(files, folders, dict.fromkeys(files, TIME_MS)), kinds)


def steps_run(case: Case, chosen: Callable[[int], bool]) -> tuple[Disk, list[Step]]:
    """Run the chosen steps of a new plan, and stop; return the disk and all steps."""
    disk = case.disk()
    with RabbitRecovery(case.root, disk) as recovery:
        plan = recovery.locked_plan()
        for number, step in enumerate(plan.steps):
            if chosen(number) and number >= len(plan.outcomes):  # what ran before the plan is not repeated
                step.run()
    return disk, plan.steps


@pytest.mark.deep
def test_each_step_can_be_the_last_before_a_kill(case: Case) -> None:
    """The steps up to each one run; the next recovery ends at the same messages, with the same answer of `verify`."""
    whole = case.disk()
    plan = apply_recovery(case.root, whole)
    expected = state_of(case.root, whole)
    assert {step.kind for step in plan.steps} >= case.kinds and plan.outcomes == [""] * len(plan.steps)
    assert expected.messages and not expected.problems
    assert plan.messages_lost == sum(step.cost.messages_lost for step in plan.steps)
    for last in range(len(plan.steps)):
        disk, _steps = steps_run(case, lambda number, last=last: number <= last)
        apply_recovery(case.root, disk)
        assert state_of(case.root, disk) == expected, f"after {plan.steps[last]}"


@pytest.mark.deep
def test_each_step_can_run_alone(case: Case) -> None:
    """Only one step runs, as if the others were lost; the next recovery keeps every message that the whole plan keeps."""
    whole = case.disk()
    plan = apply_recovery(case.root, whole)
    expected = state_of(case.root, whole)
    for one in range(len(plan.steps)):
        disk, _steps = steps_run(case, lambda number, one=one: number == one)
        apply_recovery(case.root, disk)
        found = state_of(case.root, disk)
        assert found.problems == expected.problems, f"after {plan.steps[one]}"
        assert not expected.messages - found.messages, f"after {plan.steps[one]}"


class _Killed(Exception):
    pass


def test_interrupted_commit_is_finished_first(node: Image) -> None:
    """A plan after a kill between the first and the last file in place begins with the rest of the change."""
    files = dict(node.files)
    damage_logs(files)
    case = Case(NODE, node._replace(files=files), set())
    whole = case.disk()
    apply_recovery(NODE, whole)
    disk = case.disk()
    renamed = disk.rename

    def rename(source: str, target: str) -> None:
        renamed(source, target)
        if "/staged/" in source and "commit.json" not in source and source.rpartition("/")[2].isdigit():
            raise _Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(_Killed):
        patch.setattr(disk, "rename", rename)
        apply_recovery(NODE, disk)
    with RabbitRecovery(NODE, disk) as recovery:
        assert [step.kind for step in recovery.plan().steps] == ["finish_staged"]
    plan = apply_recovery(NODE, disk)
    assert plan.steps[0].kind == "finish_staged" and plan.is_applied
    assert state_of(NODE, disk) == state_of(NODE, whole)


def test_staged_files_without_a_list_of_changes_are_deleted(node: Image) -> None:
    """A kill came before the last step; its files are of no use to the next plan."""
    files = dict(node.files)
    damage_names(files)
    disk, _steps = steps_run(Case(NODE, node._replace(files=files), set()), lambda number: number == 0)
    with RabbitRecovery(NODE, disk) as recovery:
        assert recovery.plan().steps[0].kind == "discard_staged"
    apply_recovery(NODE, disk)
    assert not [name for name in disk.files() if "/staged" in name]


def test_every_kind_of_step_is_tried() -> None:
    """A new kind of step needs a case here."""
    tried = {kind for _version, _is_clean, _damage, kinds in CASES.values() for kind in kinds}
    assert tried | {"finish_staged", "discard_staged", *OPENING} == Kinds("rabbitstore").found(STEPS)


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("steps", range(6))
def test_an_opening_killed_after_any_step_is_repeated(tmp_path: Path, version: int, is_clean: bool, steps: int) -> None:
    """The plan is what an opening runs; nothing before its first step changes the folder."""
    image = vhost_image(tmp_path / "made", version, is_clean=is_clean)
    disk = ForgettingDisk.of(image, TIME_MS)
    for entry in disk.list(f"{VHOST}/{TRANSIENT_FOLDER}"):
        disk.delete(f"{VHOST}/{TRANSIENT_FOLDER}/{entry.name}")
    disk.delete_folder(f"{VHOST}/{TRANSIENT_FOLDER}")
    settings = RabbitSettings(background=False, index_version=version, index=IndexSettings(segment_entries=16))
    expected, before = state_of(VHOST, disk).messages, disk.files()
    plan = VhostOpening(disk, VHOST, settings).plan()
    assert disk.files() == before
    assert [step.kind for step in plan.steps] == OPENING
    del plan.steps[steps:]
    plan.apply()
    with RabbitStore.open(VHOST, settings=settings, disk=ForgettingDisk.of(disk.after_kill(), TIME_MS)) as store:
        found = Counter(
            (name, got.body) for name in ("first", "second") for got in iter(partial(store.get, name, auto_ack=True), None)
        )
    assert found == expected
