"""Bugs that the lab found; each docstring states what was lost."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from storageio import DiskError, Mode, StoreCorrupt, StoreError
from storageio.testing import ForgettingDisk, Image

pytestmark = pytest.mark.default


def crashed(run: Any, **changed: bytes | None) -> tuple[Image, int]:
    """Return the image after a kill, with some files replaced, or removed if None, and the number of flushed messages.

    A key is the end of a path, with `__` for `/`.
    """
    image = run.disk.after_kill()
    run.ledger.learn(run.store)
    files = dict(image.files)
    for part, data in changed.items():
        (path,) = [path for path in files if path.endswith(part.replace("__", "/"))]
        if data is None:
            del files[path]
        else:
            files[path] = data
    return image._replace(files=files), run.ledger.flushed


def recover(run: Any, image: Image, flushed: int) -> int:
    return run.recover(ForgettingDisk.of(image, run.disk.time_ms), flushed)


def put_all(run: Any, *operations: tuple[Any, ...]) -> None:
    for operation in operations:
        run.do(operation)


def test_a_record_that_lost_its_checksum_sector_is_not_accepted_as_unprotected(lab: Any) -> None:
    """Its body was whole, so it used to pass as unprotected, with tags and keys cut short."""
    for size in range(200, 270):
        run = lab.RocketmqRun(tries=False)
        put_all(run, ("put", "T", 0, 10, 0), ("flush",), ("put", "T", 0, size, 2))
        image, flushed = crashed(run)
        entry = run.ledger.entries[1]
        path = f"{lab.ROOT}/commitlog/{0:020d}"
        data = bytearray(image.files[path])
        border = entry.end_offset - entry.end_offset % 512
        if entry.physical_offset < border < entry.end_offset:
            data[border : entry.end_offset] = bytes(entry.end_offset - border)
            count = recover(run, image._replace(files=image.files | {path: bytes(data)}), flushed)
            assert count == 1, f"{entry.end_offset - border} bytes lost"
        lab.abandon(run.store)


def test_only_the_last_log_file_may_be_empty_after_a_crash(lab: Any) -> None:
    """Only the name of a new log file was synced: a crash left two empty files, and the store refused to open."""
    run = lab.RocketmqRun(tries=False)
    put_all(run, ("put", "T", 0, 4500, 0), ("prepare",))
    image = run.disk.least()
    sizes = [len(data) for path, data in image.files.items() if "/commitlog/" in path]
    assert sizes == [lab.LOG_SIZE, 0]
    assert recover(run, image, 0) == 1, "the sync of the size brought the record along"


def test_the_units_of_a_lost_first_queue_file_are_rebuilt(lab: Any) -> None:
    """Since the second file survived, the queue began at unit 5, and the first five messages were unreadable."""
    run = lab.RocketmqRun(tries=False)
    put_all(run, ("put_batch", "T", 0, 7, 10), ("flush",), ("dispatch",))
    first = f"{lab.ROOT}/consumequeue/T/0/{0:020d}"
    assert len(run.disk.least().files[first]) == 100, "a full file is on the disk before the next one is made"
    image, flushed = crashed(run, consumequeue__T__0__00000000000000000000=b"")
    assert recover(run, image, flushed) == 7


def test_lost_units_of_an_old_queue_file_are_rebuilt(lab: Any) -> None:
    """A real broker syncs a queue each minute; recovery used to examine only the last three files."""
    run = lab.RocketmqRun(tries=False)
    put_all(run, ("put_batch", "T", 0, 30, 10), ("flush",), ("dispatch",))
    image, flushed = crashed(run, consumequeue__T__0__00000000000000000000=bytes(100))
    assert recover(run, image, flushed) == 30


def test_an_empty_index_file_before_others_is_rebuilt(lab: Any) -> None:
    """Zeros are valid chains and the checkpoint had zeros too, so the file counted as whole and its keys were lost."""
    run = lab.RocketmqRun(tries=False, config=lab.lab_config(max_index_num=6))
    put_all(run, ("put_many", "T", 9, 10), ("flush",), ("dispatch",))
    names = sorted(path for path in run.disk.files() if "/index/" in path)
    assert len(names) == 2
    size = len(run.disk.files()[names[0]])
    image, flushed = crashed(run, **{names[0].rpartition("/")[2]: bytes(size)})
    assert recover(run, image, flushed) == 9


def test_index_items_of_lost_records_are_removed_from_every_file(lab: Any) -> None:
    """The index was more than a file ahead of the log; items in earlier files stayed and led to other records."""
    run = lab.RocketmqRun(tries=False, config=lab.lab_config(max_index_num=6))
    put_all(run, ("put_many", "T", 3, 10), ("flush",), ("put_many", "T", 12, 10), ("dispatch",), ("derive", True))
    run.ledger.learn(run.store)
    image, flushed = crashed(run)
    path = f"{lab.ROOT}/commitlog/{0:020d}"
    cut = run.ledger.entries[3].physical_offset
    log = image.files[path][:cut].ljust(lab.LOG_SIZE, b"\0")
    assert recover(run, image._replace(files=image.files | {path: log}), flushed) == 3


def test_an_index_file_emptied_by_a_recovery_that_was_killed_does_not_hide_records(lab: Any) -> None:
    """A recovery was killed after it emptied the file; the next one trusted the file's end offset.

    Records up to that offset counted as indexed, so queries by their keys found nothing.
    """
    run = lab.RocketmqRun(tries=False, config=lab.lab_config(max_index_num=6))
    put_all(run, ("put", "T", 2, 10, 0), ("dispatch",), ("flush",), ("derive", True))
    put_all(run, ("put_batch", "T", 0, 4, 10), ("dispatch",), ("flush",))
    (path,) = [path for path in run.disk.files() if "/index/" in path]
    emptied = bytearray(run.disk.files()[path])
    emptied[32:68] = (1).to_bytes(8, "big").ljust(36, b"\0")  # slot count 0, next item 1, empty slots
    image, flushed = crashed(run, **{path.rpartition("/")[2]: bytes(emptied)})
    assert recover(run, image, flushed) == 5


def test_an_index_hint_from_before_a_crash_does_not_cover_later_puts(lab: Any) -> None:
    """`index.json` outlived a recovery that dropped its file; a new file of that name was lost, and opening failed."""
    run = lab.RocketmqRun(tries=False)
    put_all(run, ("put", "T", 0, 10, 1), ("dispatch",), ("flush",), ("derive", True))
    disk = ForgettingDisk.of(run.disk.after_kill(), run.disk.time_ms)
    store = lab.open_still(disk, run.config)
    lab.abandon(store)
    run.recover(ForgettingDisk.of(disk.least(), disk.time_ms), run.ledger.flushed)


def test_an_index_hint_of_lost_records_is_deleted_before_puts(lab: Any) -> None:
    """Later puts would be at positions for which `index.json` lists other items."""
    run = lab.RocketmqRun(tries=False)
    put_all(run, ("put", "T", 0, 10, 1), ("put", "T", 0, 10, 1), ("dispatch",), ("derive", True))
    disk = ForgettingDisk.of(run.disk.least(), run.disk.time_ms)
    store = lab.open_still(disk, run.config)
    assert store.engine.log.written_offset == 0, "nothing was flushed, so nothing came back"
    assert f"{lab.ROOT}/brokerstore/index.json" not in disk.least().files
    lab.abandon(store)


def test_the_checkpoint_does_not_cover_units_after_a_failed_sync(lab: Any) -> None:
    """After a failed sync the next one succeeds: the checkpoint used to advance, and the queue's units were lost."""
    run = lab.RocketmqRun(tries=False)
    put_all(run, ("put", "T", 0, 10, 0), ("dispatch",), ("flush",), ("wait", 60_000), ("put", "T", 0, 10, 0), ("dispatch",))
    put_all(run, ("flush",))

    def refuse(operation: str, path: str) -> None:
        if operation == "sync" and "/consumequeue/" in path:
            raise DiskError(operation, path, 5, "no")

    run.disk.refuse = refuse
    run.do(("derive", True))
    run.disk.refuse = None
    before = run.disk.files()[f"{lab.ROOT}/checkpoint"]
    run.do(("derive", True))
    assert run.disk.files()[f"{lab.ROOT}/checkpoint"] == before
    run.store.close()
    assert f"{lab.ROOT}/abort" in run.disk.files(), "not a clean stop"
    run.recover(ForgettingDisk.of(run.disk.least(), run.disk.time_ms), run.ledger.flushed)


def test_a_last_queue_unit_that_lost_its_tag_is_rebuilt(lab: Any) -> None:
    """A lost sector began at the unit's tags code, and since its offset was right, the unit was trusted.

    A consumer that filters by that tag never got the message.
    """
    run = lab.RocketmqRun(tries=False, config=lab.lab_config().but(mapped_file_size_consume_queue=2000))
    put_all(run, *[("put", "T", 0, 10, 2)] * 26, ("flush",), ("dispatch",))
    name = "consumequeue__T__0__" + "0" * 20
    (units,) = [data for path, data in run.disk.after_kill().files.items() if path.endswith(name.replace("__", "/"))]
    assert any(units[512:520]), "unit 25 has a tag"
    image, flushed = crashed(run, **{name: units[:512] + bytes(len(units) - 512)})
    assert recover(run, image, flushed) == 26


def test_a_queue_keeps_its_next_offset_after_its_records_were_deleted(lab: Any) -> None:
    """Retention used to delete the log before the queue's units were synced: after a crash the queue began again at 0."""
    run = lab.RocketmqRun(tries=False)
    put_all(run, ("put", "T", 0, 3000, 0), ("put_many", "V", 3, 2000), ("put_many", "V", 3, 2000), ("dispatch",), ("flush",))
    run.do(("retain", 1))
    assert run.store.engine.log.min_offset > 0
    run.recover(ForgettingDisk.of(run.disk.least(), run.disk.time_ms), run.ledger.flushed)


# RabbitMQ


@pytest.fixture
def index_of(world: Any) -> Any:
    """Return a function that opens a queue index on a disk."""
    settings = world.module("rabbitstore.settings").IndexSettings(segment_entries=8)
    return lambda disk: world.module("rabbitstore.engine.queue_index_cy").QueueIndex(disk, "/q", settings)


def entries_of(index: Any) -> list[int]:
    found = [entry.seq_id for entry in index.load(lambda _entry: True)]
    return found


def test_entries_are_not_appended_after_zeros_in_a_segment(index_of: Any) -> None:
    """The segment kept its size but not its bytes: the journal's entries were appended after the zeros and never read."""
    disk = ForgettingDisk()
    index = index_of(disk)
    index.publish(0, b"i" * 16, 0, 5, True, None)
    index.sync()
    index.abandon()
    image = disk.after_kill()
    disk = ForgettingDisk.of(
        image._replace(files=image.files | {"/q/0.idx": bytes(90)}, times_ms=image.times_ms | {"/q/0.idx": 0})
    )
    again = index_of(disk)
    assert entries_of(again) == [0]
    assert [entry.seq_id for entry in again.read(0, 8)] == [0]
    again.abandon()
    assert entries_of(index_of(disk)) == [0]


def test_the_journal_copy_is_used_if_the_segment_copy_is_torn(index_of: Any, world: Any) -> None:
    """After an interrupted flush the segment's torn message used to replace the journal's whole one."""
    content, is_whole = world.module("rabbitstore.format.content"), world.module("rabbitstore.engine.opening").is_whole
    whole = content.encode_content(content.Content("/", "", ("q",), b"\0\0", b"x" * 600, b"i" * 16, True))
    disk = ForgettingDisk()
    index = index_of(disk)
    index.publish(0, b"i" * 16, 0, 600, True, whole)
    index.sync()
    journal = disk.files()["/q/journal.jif"]
    index.flush()
    segment = bytearray(disk.files()["/q/0.idx"])
    segment[512:] = bytes(len(segment) - 512)
    index.abandon()
    image = disk.after_kill()
    files = image.files | {"/q/0.idx": bytes(segment), "/q/journal.jif": journal}
    again = index_of(ForgettingDisk.of(image._replace(files=files)))
    assert [entry.term for entry in again.load(lambda _entry: True, is_whole)] == [whole]
    assert [entry.term for entry in again.read(0, 8)] == [whole]


def test_a_torn_embedded_message_at_the_journals_end_is_dropped(index_of: Any, world: Any) -> None:
    """It was never confirmed, but used to be delivered although no client could decode it."""
    content, is_whole = world.module("rabbitstore.format.content"), world.module("rabbitstore.engine.opening").is_whole
    whole = content.encode_content(content.Content("/", "", ("q",), b"\0\0", b"x" * 600, b"i" * 16, True))
    disk = ForgettingDisk()
    index = index_of(disk)
    index.publish(0, b"i" * 16, 0, 600, True, whole)
    index.sync()
    index.abandon()
    journal = disk.files()["/q/journal.jif"]
    file = disk.open("/q/journal.jif", Mode.WRITE)
    file.write(100, bytes(len(journal) - 100))
    file.close()
    assert list(index_of(disk).load(lambda _entry: True, is_whole)) == []


def test_a_segment_exists_at_every_moment_of_its_rewrite(index_of: Any) -> None:
    """The old segment used to be renamed to .bak first: a crash before the second rename lost the entries."""
    disk = ForgettingDisk()
    index = index_of(disk)
    index.publish(0, b"i" * 16, 0, 5, True, None)
    index.sync()
    index.flush()
    index.abandon()
    image = disk.after_kill()
    files = image.files | {"/q/0.idx": image.files["/q/0.idx"] + b"\1junk"}
    disk = ForgettingDisk.of(image._replace(files=files))
    seen = []
    disk.watch = lambda _operation, _path: seen.extend((disk.after_kill(), disk.least()))
    assert entries_of(index_of(disk)) == [0]
    assert len(seen) > 6
    for left in seen:
        assert entries_of(index_of(ForgettingDisk.of(left))) == [0]


def test_a_deleted_queue_does_not_come_back_without_its_name(world: Any) -> None:
    """The name file used to be deleted first: after a crash, opening made a nameless queue of the folder."""
    lab = world.module("lab.rabbitmq_lab")
    run = lab.RabbitRun(tries=False)
    for operation in (("declare", "a", "default"), ("publish", ("a",), 10, True), ("sync",)):
        run.do(operation)
    left: list[Image] = []
    run.disk.watch = lambda _operation, _path: left.extend((run.disk.after_kill(), run.disk.least()))
    run.do(("delete", "a"))
    run.disk.watch = None
    assert len(left) > 6
    for image in left:
        store = run.open(ForgettingDisk.of(image))
        assert set(store.queue_names()) <= {"a"}
        store.abandon()
    store = run.open(ForgettingDisk.of(run.disk.least()))
    assert store.queue_names() == [], "gone for good when the call returned"
    store.abandon()


def test_entries_of_missing_messages_are_dropped_durably(world: Any) -> None:
    """The collector had deleted acknowledged messages before the index was synced; opening dropped them in memory only.

    After the next crash `verify` reported each of them as a lost message.
    """
    lab, check = world.module("lab.rabbitmq_lab"), world.module("lab.rabbitmq_check")
    run = lab.RabbitRun(tries=False)
    for operation in (
        ("declare", "a", "default"),
        ("publish", ("a",), 3000, True),
        ("publish", ("a",), 3000, True),
        ("close",),
    ):
        run.do(operation)
    run.store.close()
    image = run.disk.after_kill()
    emptied = {path: b"" if path.endswith(".rdq") else data for path, data in image.files.items()}
    disk = ForgettingDisk.of(image._replace(files=emptied))
    store = run.open(disk)
    assert check.take_all(store, "a") == []
    store.abandon()
    for left in (disk.after_kill(), disk.least()):
        check.check_folder(lab.ROOT, ForgettingDisk.of(left))


def test_an_unsynced_copy_of_the_collector_does_not_replace_an_intact_message(world: Any) -> None:
    """After a kill during the write of `0.rdt`, recovery appended the torn copy to `0.rdq`, and the later copy counted.

    A confirmed message was lost, although `0.rdq` still had it whole.
    """
    lab = world.module("lab.rabbitmq_lab")
    run = lab.RabbitRun(tries=False)
    for operation in (("declare", "a", "default"), ("publish", ("a",), 3000, True), ("publish", ("a",), 3000, True), ("sync",)):
        run.do(operation)
    image, floor = run.disk.after_kill(), run.ledger.floor()
    path = f"{lab.ROOT}/msg_store_persistent/0.rdq"
    whole = image.files[path]
    torn = bytearray(whole[: len(whole) // 2])
    torn[512:1024] = bytes(512)
    files = image.files | {path.replace("rdq", "rdt"): bytes(torn)}
    times = image.times_ms | {path.replace("rdq", "rdt"): 0}
    run.recover(ForgettingDisk.of(image._replace(files=files, times_ms=times)), floor)


WAYS_TO_ROLL = [("put", "ASYNC"), ("put_many", "ASYNC"), ("prepare", "ASYNC"), ("put_many", "SYNC")]


@pytest.mark.parametrize(("where", "mode"), WAYS_TO_ROLL)
def test_a_log_file_with_a_failed_sync_at_roll_over_is_never_reported_as_flushed(lab: Any, where: str, mode: str) -> None:
    """Creating the next file syncs the previous one; after a failure there, later syncs used to succeed.

    Flushed records and synchronous puts were lost in a power failure, because the kernel had dropped their pages.
    """
    kind = lab.FlushMode[mode]
    run = lab.RocketmqRun(tries=False, config=lab.lab_config(flush_disk_type=kind))
    if mode == "ASYNC":
        put_all(run, ("put", "T", 0, 3000, 0), ("put", "T", 0, 3000, 0))
    failed: list[str] = []

    def refuse(operation: str, path: str) -> None:
        if operation == "sync" and "/commitlog/" in path and not failed:
            failed.append(path)
            raise DiskError(operation, path, 5, "EIO")

    steps = {
        "put": lambda: run.do(("put", "T", 0, 3000, 0)), "put_many": lambda: run.do(("put_many", "T", 9, 1500)),
        "prepare": lambda: run.store.engine.log.queue.prepare_next() or run.do(("flush",)),
    }  # fmt: skip
    run.disk.refuse = refuse
    with contextlib.suppress(StoreError):
        for _ in range(3):
            steps[where]()
    assert failed
    for _ in range(3):
        with pytest.raises(StoreError):
            run.store.put(run.message("T", 0, 3000, 0))
            run.store.flush()
    flushed = run.ledger.flushed
    run.recover(ForgettingDisk.of(run.disk.least(), run.disk.time_ms), flushed)
    lab.abandon(run.store)


def test_batch_queues_are_synced_before_retention_deletes_their_records(lab: Any) -> None:
    """Only ordinary queues used to be synced: after a power failure the next batch got offset 0 again."""
    run = lab.RocketmqRun(tries=False)
    store = run.store
    store.create_topic("B", 1, attributes={"queue.type": "BatchCQ"})
    kind = type(run.message("T", 0, 10, 0))
    for _ in range(4):
        store.put_batch("B", 0, [kind("B", bytes(300)) for _ in range(3)])
    for _ in range(4):
        store.put(kind("T", bytes(3000), queue_id=0))
    store.engine.settle()
    store.flush()
    assert store.delete_before(lab.LOG_SIZE) == 1
    again = lab.open_still(ForgettingDisk.of(run.disk.least(), run.disk.time_ms), run.config)
    assert again.put_batch("B", 0, [kind("B", b"z")]).queue_offset == 12
    lab.abandon(again)
    lab.abandon(store)


def test_the_index_sidecar_lists_only_synced_files(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dispatcher filled a file after the full ones were synced, and `index.json` listed it as synced.

    After a power failure the store did not open.
    """
    run = lab.RocketmqRun(tries=False, config=lab.lab_config(max_index_num=6))
    put_all(run, ("put_many", "T", 4, 10), ("dispatch",), ("flush",))
    index = run.store.engine.index
    sync_full = index.sync_full

    def and_then_a_file_is_filled() -> int:
        monkeypatch.setattr(index, "sync_full", sync_full)
        safe = sync_full()
        put_all(run, ("put_many", "T", 3, 10), ("dispatch",), ("flush",))
        return int(safe)

    monkeypatch.setattr(index, "sync_full", and_then_a_file_is_filled)
    run.do(("derive", True))
    assert len(index.files) == 2
    run.ledger.learn(run.store)
    assert run.recover(ForgettingDisk.of(run.disk.least(), run.disk.time_ms), run.ledger.flushed) == 7
    lab.abandon(run.store)


@pytest.mark.parametrize("left", [0, 1, 3])
def test_opening_refuses_a_log_that_lost_files_since_a_clean_stop(lab: Any, left: int) -> None:
    """Queues extended beyond the log: new records would take the positions of lost ones, and reach no consumer."""
    run = lab.RocketmqRun(tries=False)
    put_all(run, *[("put_many", "T", 9, 1500)] * 2, ("close",))
    run.store.close()
    image = run.disk.after_kill()
    logs = sorted(path for path in image.files if "/commitlog/" in path)
    assert len(logs) > 3
    files = {path: data for path, data in image.files.items() if path not in logs[left:]}
    with pytest.raises(StoreCorrupt, match="the log has lost its end"):
        lab.open_still(ForgettingDisk.of(image._replace(files=files), run.disk.time_ms), run.config)


def test_an_embedded_message_with_lost_last_bytes_is_the_torn_end_of_the_journal(world: Any) -> None:
    """The lost page had so few bytes of the message that it did not look torn.

    Opening moved the entry into its segment, where `verify` reported it as damage.
    """
    content, entry = world.module("rabbitstore.format.content"), world.module("rabbitstore.format.entry_cy")
    opening = world.module("rabbitstore.engine.opening")
    ident = b"0123456789abcdef"
    term = content.encode_content(content.Content("/", "", ("q",), b"\0\0", b"body", ident, True))

    def is_whole(torn: bytes) -> bool:
        return bool(opening.is_whole(entry.IndexEntry(0, ident, 0, 4, True, torn, True, "journal.jif", 0)))

    assert is_whole(term)
    assert not is_whole(term[:-7] + bytes(7))
    assert not is_whole(bytes(9) + term[9:])


def test_an_index_entry_is_not_on_the_disk_before_its_message(world: Any) -> None:
    """A full journal used to be flushed before its messages were synced, and a crash lost only the first page of messages.

    Opening found a message after invalid bytes and refused this as damage, although nothing confirmed was lost.
    """
    lab = world.module("lab.rabbitmq_lab")
    lab.random_run(1253, 40, report=world.module("lab.report").Report(), deep=0)


def test_a_journal_torn_inside_a_sequence_number_removes_no_other_message(world: Any) -> None:
    """A lost sector began within the last entry's number, so the entry read as one of message 0.

    As an acknowledgement or a transient message of number 0 it removed the confirmed message 0.
    """
    lab = world.module("lab.rabbitmq_lab")
    lab.random_run(100303, 40, report=world.module("lab.report").Report(), deep=0)


def test_an_acknowledgement_that_ends_a_segment_in_a_zero_stays(world: Any) -> None:
    """Its last byte was zero and began a sector, so it counted as torn, and the message was delivered again."""
    lab = world.module("lab.rabbitmq_lab")
    check = world.module("lab.rabbitmq_check")
    for size in range(190):
        run = lab.RabbitRun(tries=False)
        publishes = [("publish", ("a",), body, True) for body in (10, size, 100, 20)]
        for operation in (("declare", "a", "lazy"), *publishes, ("flush_journals",), ("get", "a", True), ("sync",)):
            run.do(operation)
        run.do(("flush_journals",))
        run.store.abandon()
        store = run.open(run.disk)
        assert b"00000001" not in [body[:8] for body in check.take_all(store, "a")], size
        store.abandon()
