"""Every step of a repair can be the last thing that a killed recovery did: the next one ends with the same store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commitlog import Message
from messagestore import MessageStore, StoreConfig
from messagestore.repair.recover import Choice, Recovery, StorePlan
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK, StoreError
from tests.archives import unpack
from tests.cases import unpack_case
from tests.messagestore.test_pool import left_behind

MESSAGES = 1200
SIZES = StoreConfig(
    mapped_file_size_commit_log=65536, mapped_file_size_consume_queue=2000, max_hash_slot_num=500, max_index_num=2000
)  # fmt: skip
LOG_FILE = 65536
Damage = Callable[[Path], None]


def log_files(store: Path) -> list[Path]:
    return sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())


def change(path: Path, at: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    with path.open("r+b") as stream:
        stream.seek(at)
        stream.write(data)


def link_instead_of_a_sidecar(store: Path) -> None:
    (store / "brokerstore" / "index.json").unlink()
    (store / "brokerstore" / "index.json").symlink_to("elsewhere")


def stray_file(store: Path) -> None:
    (store / "commitlog" / "notes").write_bytes(b"no log file")


def short_file(store: Path) -> None:
    os.truncate(log_files(store)[1], LOG_FILE // 2)


def missing_file(store: Path) -> None:
    log_files(store)[1].unlink()


def missing_log(store: Path) -> None:
    shutil.rmtree(store / "commitlog")


def unreadable_config(store: Path) -> None:
    (store / "config" / "consumerOffset.json").write_bytes(b'{"offsetTable":{"T@g":')
    (store / "config" / "consumerOffset.json.bak").write_bytes(b'{"offsetTable":{"T@g":{0:3}}}')
    (store / "config" / "subscriptionGroup.json").write_bytes(b'{"torn":')


def damaged_record(store: Path) -> None:
    change(log_files(store)[2], 3000, bytes(40))


def crash_tail(store: Path) -> None:
    """Leave a torn record that nothing names behind the last one."""
    with MessageStore.open(store, "r", SIZES) as opened:
        end = opened.log_end
    change(log_files(store)[end // LOG_FILE], end % LOG_FILE, b"\0\0\1\0\xda\xa3\x20\xa7" + b"x" * 90)
    (store / "abort").write_text("1")


def killed(store: Path) -> None:
    (store / "abort").write_text("1")


def unplaced_claim(store: Path) -> None:
    """Take away all that tells where the lost messages were, except how many the group has consumed."""
    for file in log_files(store):
        file.unlink()
    for name in ("consumequeue", "index", "brokerstore"):
        shutil.rmtree(store / name)
    (store / "checkpoint").unlink()


def lost_queues(store: Path) -> None:
    shutil.rmtree(store / "consumequeue" / "T")
    shutil.rmtree(store / "index")


def lost_batch_queue(store: Path) -> None:
    shutil.rmtree(next((store / "batchconsumequeue").iterdir()))


def late_checkpoint(store: Path) -> None:
    """Let the checkpoint be a day later than now."""
    change(store / "checkpoint", 0, (REAL_DISK.now_ms() + 86_400_000).to_bytes(8, "big"))


def damaged_checkpoint(store: Path) -> None:
    os.truncate(store / "checkpoint", 11)


def offsets_ahead(store: Path) -> None:
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:99999}}}')


def queue_files_without_units(store: Path) -> None:
    """Let a killed store have prepared the next files of its queues."""
    folder = store / "consumequeue" / "T" / "0"
    last = max(folder.iterdir())
    (folder / f"{int(last.name) + 2000:020d}").write_bytes(bytes(2000))
    killed(store)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cleanly stopped store of several log files, whose group has consumed everything."""
    folder = tmp_path_factory.mktemp("sound") / "store"
    with MessageStore.open(folder, "a", SIZES) as store:
        store.create_topic("T", 2)
        for number in range(MESSAGES):
            store.put(Message("T", b"%06d" % number + b"." * 200, keys=[f"k{number}"], queue_id=number % 2))
        with store.consumer("T", group="g") as consumer:
            while consumer.poll(1000):
                consumer.commit()
    return folder


def pooled(target: Path) -> Path:
    left_behind(target.with_name("pool"), target)
    return target


SCENARIOS: dict[str, tuple[Damage, Choice, set[str]]] = {
    "sidecar": (link_instead_of_a_sidecar, Choice.REFUSE, {"mark_unclean", "move_aside", "close_store"}),
    "stray": (stray_file, Choice.REFUSE, {"move_stray", "rebuild_differing"}),
    "short file": (short_file, Choice.SKIP, {"resize_file", "fill_holes"}),
    "missing file": (missing_file, Choice.SKIP, {"create_file", "fill_holes"}),
    "missing file, truncated": (missing_file, Choice.TRUNCATE, {"create_file", "cut_log"}),
    "no log": (missing_log, Choice.TRUNCATE, {"create_folder"}),
    "config": (unreadable_config, Choice.REFUSE, {"restore_config", "remove_config"}),
    "damaged record": (damaged_record, Choice.SKIP, {"fill_holes", "clamp_offsets"}),
    "damaged record, truncated": (damaged_record, Choice.TRUNCATE, {"cut_log", "clamp_offsets"}),
    "crash tail": (crash_tail, Choice.REFUSE, {"cut_tail"}),
    "killed": (killed, Choice.REFUSE, {"close_store"}),
    "unplaced": (unplaced_claim, Choice.TRUNCATE, {"accept_end"}),
    "queues": (lost_queues, Choice.REFUSE, {"rebuild"}),
    "late checkpoint": (late_checkpoint, Choice.TRUNCATE, {"accept_end", "write_checkpoint"}),
    "damaged checkpoint": (damaged_checkpoint, Choice.REFUSE, {"write_checkpoint"}),
    "offsets": (offsets_ahead, Choice.REFUSE, {"clamp_offsets"}),
    "queue files": (queue_files_without_units, Choice.REFUSE, {"delete_unused"}),
}


def contents(store: Path) -> list[tuple[str, int, int, bytes]]:
    """Return every message as its queue has it."""
    with MessageStore.open(store, "r") as opened:
        return [
            (topic, queue_id, message.queue_offset, message.body)
            for topic in sorted(opened.topics())
            for queue_id in opened.queue_ids(topic)
            for message in opened.read(topic, queue_id)
        ]


def planned(store: Path, choice: Choice) -> StorePlan:
    return Recovery(str(store), choice).plan()


def runs(plan: StorePlan) -> Iterator[tuple[str, list[int]]]:
    """Yield which steps a recovery ran before it was killed: all up to each one, and each one alone."""
    for number in range(len(plan.steps)):
        yield f"up to step {number}", list(range(number + 1))
        if number:
            yield f"step {number} alone", [number]


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.deep
def test_a_recovery_killed_after_any_step_is_finished_by_the_next(name: str, sound: Path, tmp_path: Path) -> None:
    """The second recovery loses nothing that an uninterrupted one keeps."""
    damage, choice, kinds = SCENARIOS[name]
    damaged = Path(shutil.copytree(sound, tmp_path / "damaged", symlinks=True))
    damage(damaged)
    check(damaged, choice, kinds, tmp_path)


def test_a_killed_restoration_of_the_ring_is_finished_by_the_next(tmp_path: Path) -> None:
    """The ring is empty when its records are in the log."""
    check(pooled(tmp_path / "damaged"), Choice.REFUSE, {"restore_ring"}, tmp_path)


@pytest.mark.parametrize(("fixture", "damage", "kind"), [
    ("broker-timer", lambda store: (store / "timerlog" / f"{0:020d}").unlink(), "rebuild_timers"),
    ("batchcq", lost_batch_queue, "rebuild"),
])  # fmt: skip
@pytest.mark.deep
def test_killed_repair_of_broker_files_is_finished_by_the_next(fixture: str, damage: Damage, kind: str, tmp_path: Path) -> None:
    """Timer files and batch queues are a broker's."""
    unpack(Path(__file__).parents[1] / "data" / f"{fixture}.tar.xz", tmp_path)
    store = next(path.parent for path in tmp_path.rglob("commitlog"))
    damage(store)
    check(store, Choice.REFUSE, {kind}, tmp_path)


@pytest.mark.deep
@pytest.mark.parametrize(("name", "choice"), [
    ("clean-stop-older-log", Choice.TRUNCATE), ("middle-log-file-gone", Choice.SKIP), ("only-the-commitlog", Choice.REFUSE),
])  # fmt: skip
def test_killed_repair_of_reported_folders_is_finished_by_the_next(name: str, choice: Choice, tmp_path: Path) -> None:
    """The folders that operators reported have several kinds of damage at a time."""
    kinds = {"add_topics", "rebuild"} if name == "only-the-commitlog" else {"close_store"}
    check(unpack_case(name, tmp_path).folder, choice, kinds, tmp_path)


def check(damaged: Path, choice: Choice, kinds: set[str], tmp_path: Path) -> None:
    """Compare each interrupted recovery of a folder with one in a single run."""
    plan = planned(damaged, choice)
    assert kinds <= {step.kind for step in plan.steps}
    whole = Path(shutil.copytree(damaged, tmp_path / "whole", symlinks=True))
    applied = Recovery(str(whole), choice).apply()
    assert [step[:3] for step in applied.steps] == [step[:3] for step in plan.steps], "what was shown ran"
    assert verify_store(str(whole)).problems == [] and planned(whole, choice).steps == []
    kept = contents(whole)
    for name, numbers in runs(plan):
        copy = Path(shutil.copytree(damaged, tmp_path / "copy", symlinks=True))
        again = planned(copy, choice)
        try:
            for number in numbers:
                again.steps[number].run()
        except StoreError:  # a step alone may need the ones before it
            assert "alone" in name, name
        Recovery(str(copy), choice).apply()
        if "alone" in name and planned(copy, choice).steps:  # it hid what the steps before it repair
            Recovery(str(copy), choice).apply()
        assert verify_store(str(copy)).problems == [], name
        assert set(kept) <= set(contents(copy)), name
        assert planned(copy, choice).steps == [], name
        shutil.rmtree(copy)
