"""A store with version-2 indexes: its files, and what survives a kill, a clean stop and damage."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from rabbitstore import RabbitSettings, RabbitStore, verify
from rabbitstore.format.tables import CleanMark, RecoveryRow
from rabbitstore.format.terms_cy import decode
from rabbitstore.read.table_check import check_clients
from rabbitstore.read.vhost_folder import VhostFolder, find_vhosts
from storageio import StoreCorrupt
from tests.archives import unpack

from .conftest import DATA

QUIET = RabbitSettings(background=False)
SEGMENT = 4096


def bodies(path: Path, queue: str = "q") -> list[bytes]:
    with RabbitStore.open(str(path), "r") as store:
        return [one.body for one in store.messages(queue)]


def files(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("queues/*/*") if not file.name.startswith("."))


def opened(path: Path) -> RabbitStore | None:
    store = RabbitStore.open(str(path), settings=QUIET)
    store.declare_queue("q")
    return store


def test_the_files_have_the_bytes_of_the_format_page(tmp_path: Path) -> None:
    """Head, entries, checksums and the message container, read here with `struct` alone."""
    with opened(tmp_path) as store:
        store.publish("q", b"small", properties={"priority": 3, "timestamp": 1700000000, "expiration": "60000"})
        store.publish("q", b"large" * 1000, persistent=True)
        store.sync()
        [queue] = (tmp_path / "queues").iterdir()
        index, kept = (queue / "0.qi").read_bytes(), (queue / "0.qs").read_bytes()
        assert (queue / ".queue_name").read_bytes() == b"VHOST: /\nQUEUE: q\nINDEX: v2\n"
    for data, magic in ((index, b"RCQI"), (kept, b"RCQS")):
        assert data[:64] == magic + struct.pack(">BQQ", 2, 0, SEGMENT) + bytes(43)
    status, flags, zero, kind, offset, length, end, size, expiry = struct.unpack(">BBBBQIIIq", index[64:96])
    assert (status, flags, zero, kind, offset, end, size) == (1, 1, 0, 2, 64, 0, 5) and expiry > 0
    assert struct.unpack(">IBHB", kept[64:72]) == (length, 1, zlib.crc32(kept[72 : 72 + length]) & 0xFFFF, 0)
    assert len(kept) == 72 + length
    name, protocol, content, annotations = decode(kept[72:])
    assert (name, protocol, content[:3]) == ("mc", "mc_amqpl", ("content", 60, "none")) and content[5] == [b"small"]
    facts = {str(key): value for key, value in annotations.items()}
    assert (facts["p"], facts["ttl"], facts["ts"], facts["x"], facts["rk"]) == (3, 60000, 1700000000000, b"", [b"q"])
    assert len(facts["id"]) == 16 and "d" not in facts and facts["rts"] > 1700000000000
    status, flags, zero, kind, msg_id, size, expiry = struct.unpack(">BBBB16sIq", index[96:])
    assert (status, flags, zero, kind, size, expiry) == (1, 1, 0, 1, 5000, 0)
    record = (tmp_path / "msg_store_persistent/0.rdq").read_bytes()
    assert record[8:24] == msg_id and record[24:32] == b"\x83h\x04w\x02mcw" and record[-1] == 255


def test_what_is_acknowledged_before_a_sync_is_never_written(tmp_path: Path) -> None:
    """Publish and acknowledgement cancel each other; a synced message leaves no file behind either."""
    with opened(tmp_path) as store:
        store.publish("q", b"x")
        assert store.get("q", auto_ack=True).body == b"x"
        store.sync()
        assert files(tmp_path) == []
        store.publish("q", b"y")
        store.sync()
        assert files(tmp_path) == ["0.qi", "0.qs"]
        store.get("q", auto_ack=True)
        store.sync()
        assert files(tmp_path) == []
    assert verify(str(tmp_path)).problems == []


def test_two_segments_survive_a_kill_and_are_deleted_when_they_are_done(tmp_path: Path) -> None:
    """Numbers go on in the next segment; each file goes with its last message."""
    store = opened(tmp_path)
    for number in range(SEGMENT + 4):
        store.publish("q", b"%d" % number)
    store.sync()
    store.abandon()
    store = opened(tmp_path)
    assert files(tmp_path) == ["0.qi", "0.qs", "1.qi", "1.qs"]
    taken = [store.get("q", auto_ack=True).body for _ in range(SEGMENT)]
    store.sync()
    assert taken == [b"%d" % number for number in range(SEGMENT)] and files(tmp_path) == ["1.qi", "1.qs"]
    store.publish("q", b"last")
    store.abandon()
    with opened(tmp_path) as store:
        store.publish("q", b"next")
    assert bodies(tmp_path) == [b"%d" % (SEGMENT + number) for number in range(4)] + [b"next"]
    assert verify(str(tmp_path)).problems == []


def test_after_a_clean_stop_only_the_first_and_last_segments_are_read(tmp_path: Path) -> None:
    """The first and the last segment are read; what was delivered is known."""
    with opened(tmp_path) as store:
        for number in range(3 * SEGMENT):
            store.publish("q", b"%d" % number)
        store.get("q")
    with RabbitStore.open(str(tmp_path), settings=QUIET) as store:
        [part] = store.queue("q").parts
        assert store.parts.is_resumed and store.problems == []
        assert part.index.read_count <= 4 and len(store.queue("q")) == 3 * SEGMENT
        assert [store.get("q").redelivered for _ in range(2)] == [True, False]


def test_transient_messages_do_not_survive(tmp_path: Path) -> None:
    """A restart drops them, and keeps those around them."""
    with opened(tmp_path) as store:
        for number in range(6):
            store.publish("q", b"%d" % number, persistent=number % 2 == 0)
    with opened(tmp_path) as store:
        assert [store.get("q").body for _ in range(3)] == [b"0", b"2", b"4"] and store.get("q") is None


@pytest.mark.parametrize("damage", ["status", "message", "lost index"])
def test_an_opening_refuses_damage_that_recover_may_repair(tmp_path: Path, damage: str) -> None:
    """An opening would drop the message, so it names the file and asks for `recover`."""
    store = opened(tmp_path)
    for number in range(3):
        store.publish("q", b"%d" % number * 50)
    store.sync()
    store.abandon()
    [index] = tmp_path.glob("queues/*/0.qi")
    if damage == "lost index":
        index.unlink()
    else:
        path, at = (index, 96) if damage == "status" else (index.with_suffix(".qs"), 200)
        data = bytearray(path.read_bytes())
        data[at] ^= 4
        path.write_bytes(data)
    with pytest.raises(StoreCorrupt, match="run recover"):
        opened(tmp_path)


def test_a_torn_unconfirmed_message_is_dropped(tmp_path: Path) -> None:
    """A power failure of the server's machine leaves entries whose messages never reached the disk."""
    store = opened(tmp_path)
    for number in range(3):
        store.publish("q", b"%d" % number * 500)
    store.sync()
    store.abandon()
    [kept] = tmp_path.glob("queues/*/0.qs")
    kept.write_bytes(kept.read_bytes()[:-300])
    with opened(tmp_path) as store:
        assert [problem.kind for problem in store.problems] == ["message_torn"]
        assert [store.get("q").body[:1] for _ in range(2)] == [b"0", b"1"] and store.get("q") is None


@pytest.mark.parametrize("version", [1, 2])
def test_a_folder_keeps_its_version(tmp_path: Path, version: int) -> None:
    """The setting is that of a new folder."""
    with RabbitStore.open(str(tmp_path), settings=RabbitSettings(background=False, index_version=version)) as store:
        store.declare_queue("q")
        store.publish("q", b"first")
    with RabbitStore.open(str(tmp_path), settings=RabbitSettings(background=False, index_version=3 - version)) as store:
        store.declare_queue("other")
        store.publish("other", b"second")
        assert {queue.version for queue in store.queues()} == {version}
    mark = (tmp_path / "msg_store_persistent/clean.dot").read_bytes()
    assert (b"index_module" in mark) == (version == 1)
    assert bodies(tmp_path) == [b"first"] and bodies(tmp_path, "other") == [b"second"]


def test_purged_queues_of_4_0_share_a_row_of_the_clean_stop(tmp_path: Path) -> None:
    """The server stores the terms of each purged queue under an empty key: `clean.dot` then names more clients."""
    opened(tmp_path).close()
    store = VhostFolder(str(tmp_path)).stores["msg_store_persistent"]
    row = RecoveryRow("", {}, 0, 0, b"b" * 16, 0, 0)
    for recovery, found in (({"": row}, 0), ({"Q": row._replace(folder="Q")}, 1)):
        problems = []
        check_clients(store, CleanMark((b"a" * 16, b"b" * 16), ""), recovery, problems)
        assert len(problems) == found


def test_opening_keeps_the_clean_stop_of_a_purged_queue(tmp_path: Path) -> None:
    """A queue that 4.0 purged has no row of its own: its index is read in full, and the store still resumes."""
    unpack(DATA / "rabbitmq4-clean.tar.xz", tmp_path)
    (vhost,) = find_vhosts(str(tmp_path / "node"))
    before = [(message.queue, message.body) for message in RabbitStore.open(vhost, "r").messages() if message.persistent]
    with RabbitStore.open(vhost, "r+") as store:
        assert (store.problems, store.lost) == ([], [])
    assert [(message.queue, message.body) for message in RabbitStore.open(vhost, "r").messages()] == before
    assert verify(vhost).problems == []
