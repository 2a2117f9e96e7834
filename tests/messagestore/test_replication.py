"""A slave that appends its master's log bytes, and refuses everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storageio import InvalidMessage, PutRejected, StoreCorrupt, StoreReadOnly
from tests.helpers import contents
from tests.messagestore.kit import LOG_SIZE, Clock, open_small, put_numbers, read_all, record_bytes


def open_slave(world: Any, folder: Path, **changes: Any) -> Any:
    return open_small(world, folder, broker_role=world.messagestore.Role.SLAVE, **changes)


def replicate(master: Any, slave: Any, offset: int | None = None, size: int = 10_000) -> int:
    """Copy everything, and return the number of ranges."""
    offset, ranges = slave.log_end if offset is None else offset, 0
    while data := master.read_log_bytes(offset, size):
        offset = slave.append_data(offset, data)
        ranges += 1
    slave.engine.settle()
    return ranges


@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_replicated_log_and_queues_equal_those_of_the_master(world: Any, tmp_path: Path, size: int) -> None:
    """Log and queues are equal byte by byte, over several files, for any size of a range; keys are found too."""
    with open_small(world, tmp_path / "m", clock=Clock()) as master, open_slave(world, tmp_path / "s") as slave:
        put_numbers(world, master, range(600), size=200, keys=["k"], topic="T")
        put_numbers(world, master, range(100), size=20, topic="U", queue_id=3)
        assert replicate(master, slave, size=size) >= 3
        assert slave.log_end == master.log_end
        assert [m.body for m in read_all(slave, "T")] == [m.body for m in read_all(master, "T")]
        assert len(slave.query("U", "k")) == 0
        assert len(slave.query("T", "k", max_count=700)) == len(master.query("T", "k", max_count=700)) > 0
    for part in ("commitlog", "consumequeue"):
        assert contents(tmp_path / "s" / part) == contents(tmp_path / "m" / part)


def test_replication_goes_on_where_it_stopped_after_both_were_closed(world: Any, tmp_path: Path) -> None:
    """The end of the slave's log is where it continues, after each open."""
    for part in range(3):
        with open_small(world, tmp_path / "m") as master, open_slave(world, tmp_path / "s") as slave:
            put_numbers(world, master, range(200 * part, 200 * part + 200), size=300)
            replicate(master, slave)
            assert slave.max_offset("T", 0) == 200 * part + 200
    with open_small(world, tmp_path / "s") as promoted:
        assert promoted.put(world.commitlog.Message("T", b"x", queue_id=0)).queue_offset == 600


def test_slave_starts_at_the_first_remaining_file_of_its_master(world: Any, tmp_path: Path) -> None:
    """A slave begins with the master's first file; its queues begin where the master's do."""
    with open_small(world, tmp_path / "m") as master, open_slave(world, tmp_path / "s") as slave:
        put_numbers(world, master, range(900), size=300)
        master.flush()
        master.engine.settle()
        master.delete_before(2 << 16)
        low = master.engine.log.min_offset
        assert low == 2 << 16
        replicate(master, slave, offset=low)
        assert slave.min_offset("T", 0) == master.min_offset("T", 0) > 0
        assert [m.body for m in read_all(slave, "T")] == [m.body for m in read_all(master, "T")]


def test_a_slave_refuses_every_put_and_a_master_every_range(world: Any, tmp_path: Path) -> None:
    """The status is SERVICE_NOT_AVAILABLE, or an error; a reader cannot write."""
    status = world.commitlog.PutStatus.SERVICE_NOT_AVAILABLE
    message = world.commitlog.Message("T", b"x")
    with open_slave(world, tmp_path / "s") as slave:
        assert slave.put(message, check=False).status is status
        assert slave.put_many([message], check=False).status is status
        for call in (
            lambda: slave.put(message),
            lambda: slave.begin_transaction(message),
            lambda: slave.put_batch("T", 0, [message]),
        ):
            with pytest.raises(PutRejected):
                call()
    with open_small(world, tmp_path / "m") as master:
        master.put(message)
        with pytest.raises(PutRejected):
            master.append_data(master.log_end, b"")
    with open_small(world, tmp_path / "m", "r") as reader, pytest.raises(StoreReadOnly):
        reader.append_data(0, b"")


def test_slave_rejects_bytes_at_an_offset_other_than_its_end(world: Any, tmp_path: Path) -> None:
    """Only the log's end accepts bytes: a range that was lost, or comes twice, changes nothing."""
    with open_small(world, tmp_path / "m") as master, open_slave(world, tmp_path / "s") as slave:
        put_numbers(world, master, range(20))
        data = master.read_log_bytes(0, 1000)
        with pytest.raises(InvalidMessage):
            slave.append_data(100, data)
        end = slave.append_data(0, data)
        for wrong in (0, end - 1, end + 100):
            with pytest.raises(InvalidMessage):
                slave.append_data(wrong, data)
        assert slave.log_end == end


def test_slave_detects_any_damaged_byte_of_a_range_before_writing(world: Any, tmp_path: Path) -> None:
    """With the whole-record checksum no flipped bit is accepted, and nothing of the range is written."""
    with open_small(world, tmp_path / "m") as master, open_slave(world, tmp_path / "s") as slave:
        put_numbers(world, master, range(3))
        data = master.read_log_bytes(0, 1)
        for position in range(len(data) - 20):  # then comes the checksum, without which a record counts as unprotected
            damage = bytearray(data)
            damage[position] ^= 0x10
            try:
                end = slave.append_data(0, bytes(damage))
            except StoreCorrupt:
                continue
            assert end == 0, f"byte {position}: taken up to {end}"  # a greater length: not whole yet
        assert slave.log_end == 0
        assert slave.append_data(0, data) == len(data)


def test_a_record_cut_at_the_ranges_end_comes_with_the_next(world: Any, tmp_path: Path) -> None:
    """A real master sends ranges that are cut anywhere; the result is where to send again."""
    with open_small(world, tmp_path / "m") as master, open_slave(world, tmp_path / "s") as slave:
        put_numbers(world, master, range(500), size=250)
        whole = b"".join(path.read_bytes() for path in sorted((tmp_path / "m" / "commitlog").iterdir()))[: master.log_end]
        offset = 0
        while offset < len(whole):
            offset = slave.append_data(offset, whole[offset : offset + 1777])
        assert [m.body for m in read_all(slave, "T")] == [m.body for m in read_all(master, "T")]


def test_slave_rejects_a_blank_of_a_wrong_size(world: Any, tmp_path: Path) -> None:
    """Otherwise the slave's files would end elsewhere than the master's."""
    with open_slave(world, tmp_path / "s") as slave:
        for size in (7, 8, 65535, 65537, -1):
            with pytest.raises(StoreCorrupt):
                slave.append_data(0, size.to_bytes(4, "big", signed=True) + bytes.fromhex("cbd43194"))
        assert slave.append_data(0, (65536).to_bytes(4, "big") + bytes.fromhex("cbd43194")) == 65536


@pytest.mark.parametrize("left", [0, 4, 7])
def test_slave_rejects_a_record_that_leaves_no_space_for_a_blank(world: Any, tmp_path: Path, left: int) -> None:
    """No store writes one: nothing after it could end the file."""
    over = len(record_bytes(0, b""))
    with open_slave(world, tmp_path / "s") as slave:
        with pytest.raises(StoreCorrupt, match="room for a blank"):
            slave.append_data(0, record_bytes(0, bytes(LOG_SIZE - over - left)))
        assert slave.log_end == 0
        assert slave.append_data(0, record_bytes(0, bytes(LOG_SIZE - over - 8))) == LOG_SIZE - 8


def test_a_killed_slave_goes_on(world: Any, tmp_path: Path) -> None:
    """After the next open, at most the end is requested again."""
    from tests.messagestore.kit import crash_copy

    with open_small(world, tmp_path / "m") as master:
        put_numbers(world, master, range(300), size=300)
        with open_slave(world, tmp_path / "s") as slave:
            slave.append_data(0, master.read_log_bytes(0, 20_000))
            copy = crash_copy(tmp_path / "s", tmp_path / "killed")
        with open_slave(world, copy) as slave:
            assert slave.log_end > 0
            replicate(master, slave)
            assert [m.body for m in read_all(slave, "T")] == [m.body for m in read_all(master, "T")]


def test_under_synchronous_flush_only_durable_bytes_leave_the_master(world: Any, tmp_path: Path) -> None:
    """A slave never has what its master could still lose; and the slave returns after its own sync."""
    sync = world.messagestore.FlushMode.SYNC
    with (
        open_small(world, tmp_path / "m", flush_disk_type=sync) as master,
        open_slave(world, tmp_path / "s", flush_disk_type=sync) as slave,
    ):
        put_numbers(world, master, range(3))
        master.put(world.commitlog.Message("T", b"later", properties={"WAIT": "false"}))
        while master.read_log_bytes(slave.log_end):
            end = slave.append_data(slave.log_end, master.read_log_bytes(slave.log_end))
            assert slave.engine.flusher.flushed_offset >= end
            assert end <= master.engine.flusher.flushed_offset


def _first_blank(folder: Path) -> tuple[int, int]:
    """Return where the blank of the first log file begins and where that file ends, from the records' sizes."""
    data = (folder / "commitlog" / f"{0:020d}").read_bytes()
    at = 0
    while data[at + 4 : at + 8] != bytes.fromhex("cbd43194"):
        at += int.from_bytes(data[at : at + 4], "big")
    return at, len(data)


@pytest.mark.parametrize("mode", ["a", "r"])
def test_read_log_bytes_inside_a_blank_raises(world: Any, tmp_path: Path, mode: str) -> None:
    """An empty result only means the end of the log; a slave that asks there would wait forever."""
    with open_small(world, tmp_path) as store:
        put_numbers(world, store, range(5), size=20_000)
        end = store.log_end
    blank, file_end = _first_blank(tmp_path)
    assert blank + 100 < file_end == LOG_SIZE
    with open_small(world, tmp_path, mode) as store:
        assert store.read_log_bytes(blank) == (file_end - blank).to_bytes(4, "big") + bytes.fromhex("cbd43194")
        for offset in (blank + 8, blank + 9, blank + 100, file_end - 1):
            with pytest.raises(InvalidMessage, match=f"offset {offset}: inside a blank"):
                store.read_log_bytes(offset)
        assert store.read_log_bytes(file_end)[4:8] == bytes.fromhex("daa320a7")
        assert store.log_end == end
        assert store.read_log_bytes(end) == b""
        for offset in (end + 1, end + 1000):
            with pytest.raises(InvalidMessage):
                store.read_log_bytes(offset)


@pytest.mark.parametrize("with_crc", [True, False])
def test_the_end_of_a_log_is_empty_for_a_reader_too(world: Any, tmp_path: Path, with_crc: bool) -> None:
    """Beside a writer, after records with and without checksum and properties, and in an empty store the result is empty."""
    with open_small(world, tmp_path, enabled_append_prop_crc=with_crc) as store:
        with open_small(world, tmp_path, "r") as reader:
            assert reader.read_log_bytes(0) == b""
        for number, fields in enumerate(({}, {"keys": ["k"]}, {}, {"tags": "a"})):
            result = store.put(world.commitlog.Message("T", bytes(number), queue_id=0, **fields))
            end = result.physical_offset + result.size_bytes
            with open_small(world, tmp_path, "r") as reader:
                assert reader.read_log_bytes(end) == b""
                assert len(reader.read_log_bytes(result.physical_offset)) == result.size_bytes
