"""Untrusted folders: none may crash the process, hang it, exhaust memory, or make it write outside."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from messagestore import MessageStore
from rabbitstore import RabbitStore
from storageio import StoreCorrupt
from storebytes.java_hash import java_hash_code
from tests.faults.golden import fast_folder, unpacked
from tests.faults.hostile import READING, WRITING, examine
from tests.stores import small_config

HUGE = 1 << 42  # a sparse file of 4 TiB takes no space
RABBIT = ["info", "ls", "dump", "stats", "verify", "recover", "export", "export --to csv", "diff", "report"]


@pytest.fixture
def outside(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Make a folder with files that must stay unchanged; sparse files need a real file system, other tests use memory."""
    is_sparse = "sparse" in request.node.name
    with nullcontext(tmp_path) if is_sparse else fast_folder() as folder:
        (folder / "precious").mkdir()
        (folder / "precious" / "00000000000000000000").write_bytes(b"precious" * 1000)
        (folder / "precious.json").write_text('{"precious": 1}')
        yield folder


@pytest.fixture
def store(outside: Path) -> Path:
    """Make a small store inside of `outside`."""
    folder = outside / "store"
    sizes = small_config(max_index_num=200)
    with MessageStore.open(folder, "a", sizes) as made:
        for number in range(30):
            made.put(made_message(number))
    return folder


def made_message(number: int) -> object:
    from brokerstore import Message

    return Message("T", b"body %d" % number, keys=["key"], tags="tag", queue_id=0)


def picture(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.glob("precious*/**/*")) if path.is_file()} | {
        "json": (folder / "precious.json").read_bytes(),
        "names": " ".join(sorted(os.listdir(folder))).encode(),
    }


def examined(store: Path, commands: list[str] = READING) -> dict[str, tuple[int, str]]:
    before = picture(store.parent)
    answer = examine(store, commands)
    assert picture(store.parent) == before, "something outside of the folder was changed"
    return answer


def first(store: Path, pattern: str) -> Path:
    return next(path for path in sorted(store.glob(pattern)) if path.is_file())


LOCATIONS = [
    "commitlog/*", "consumequeue/T/0/*", "index/*", "checkpoint", "config/topics.json", "lock", "abort",
    "brokerstore/clean.json", "brokerstore/index.json", "brokerstore/queues.json",
]  # fmt: skip


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link_to_a_file(path: Path) -> None:
    path.symlink_to(path.parents[len(path.parents) - 1 - _depth(path)] / "precious" / "00000000000000000000")


def _depth(path: Path) -> int:
    """Return the number of parts of the path above the store."""
    return next(number for number, part in enumerate(path.parts) if part == "store") - 1


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def folder_instead(path: Path) -> None:
    path.mkdir()


def sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(HUGE)


def device(path: Path) -> None:
    try:
        os.mknod(path, 0o20666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("devices are root's to make")


STRANGE: list[Callable[[Path], None]] = [
    fifo, link_to_a_file, link_to_a_device, link_to_itself, folder_instead, sparse, device,
]  # fmt: skip


@pytest.mark.parametrize("strange", STRANGE, ids=lambda strange: strange.__name__)
def test_each_file_replaced_by_another_file_type(store: Path, strange: Callable[[Path], None]) -> None:
    """Pipes, devices, links, folders and 4 TiB files replace each kind of file, one at a time."""
    for position in LOCATIONS:
        copy = store.parent / "copy"
        shutil.copytree(store, copy / "store", symlinks=True)
        shutil.copytree(store.parent / "precious", copy / "precious")
        shutil.copy(store.parent / "precious.json", copy / "precious.json")
        path = next(iter(sorted((copy / "store").glob(position))), copy / "store" / position)
        if path.exists():
            path.unlink()
        strange(path)
        examined(copy / "store", ["info", "verify", "dump --limit 50", "recover", *WRITING[2:]])
        shutil.rmtree(copy)


@pytest.mark.parametrize("name", ["consumequeue", "index", "config", "brokerstore"])
def test_folders_that_are_links_are_not_emptied(store: Path, name: str) -> None:
    """A rebuild and a recovery remove the link and leave its target alone."""
    shutil.rmtree(store / name)
    (store / name).symlink_to(store.parent / "precious")
    examined(store, ["verify", "rebuild all", "recover --apply --skip-bad"])


def test_a_symlinked_log_is_repaired_only_with_follow_links(store: Path) -> None:
    """A log outside of the folder is repaired only with `--follow-links`; `recover --apply` used to repair it always."""
    log, outside = store / "commitlog", store.parent / "precious-log"
    path = log / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[data.index(b"body 7")] ^= 1
    path.write_bytes(data)
    log.rename(outside)
    log.symlink_to(outside)
    answer = examined(store, ["verify", "recover", "recover --apply --skip-bad"])
    assert answer["verify"][0] == 1 and "--follow-links" in answer["recover --apply --skip-bad"][1]
    linked = store.parent / "linked" / "store"
    linked.parent.mkdir()
    linked.symlink_to(store)
    code, talk = examine(linked, ["recover --apply --skip-bad --follow-links"])["recover --apply --skip-bad --follow-links"]
    assert code == 6, talk
    assert examine(linked, ["verify"])["verify"][0] == 0


def crafted(topic: bytes, *, queue_id: int = 0, queue_offset: int = 0, at: int = 0, properties: bytes = b"", body: bytes = b"b",
            sys_flag: int = 0) -> bytes:  # fmt: skip
    """Return a record that passes every check, built from the format page."""
    head = struct.pack(">iiqqiq", queue_id, 0, queue_offset, at, sys_flag, 1_700_000_000_000)
    hosts = b"\x7f\0\0\1\0\0\x2a\x9f"
    rest = head + hosts + struct.pack(">q", 1_700_000_000_000) + hosts + struct.pack(">iqi", 0, 0, len(body)) + body
    rest += bytes([len(topic)]) + topic + struct.pack(">h", len(properties)) + properties
    crc = zlib.crc32(body) & 0x7FFFFFFF
    return struct.pack(">iIi", len(rest) + 12, 0xDAA320A7, crc) + rest


def write_log(store: Path, *records: dict[str, object]) -> None:
    """Replace the store's content by a log of such records."""
    for name in ("consumequeue", "index", "brokerstore", "checkpoint"):
        path = store / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    data = b""
    for record in records:
        data += crafted(at=len(data), **record)  # type: ignore[arg-type]
    (store / "commitlog" / "00000000000000000000").write_bytes(data.ljust(131072, b"\0"))


NAMES = [b"..", b".", b"../../precious", b"/etc", b"a/../../precious", b"nul\0name", b"\xff\xfe", b"\x1b[31mred\x1b]0;t\x07",
         b"line\nfeed", b"x" * 127, b"<script>alert(1)</script>", "\u202egnp".encode(), b"%s%n", b"CON", b"~"]  # fmt: skip


def test_topics_that_are_paths(store: Path) -> None:
    """The records pass every check; queues rebuilt from them create no folder outside."""
    for name in NAMES:
        write_log(store, {"topic": b"T"}, {"topic": name}, {"topic": b"T", "queue_offset": 1})
        examined(store, ["verify", "dump --limit 50", "ls", *WRITING])


@pytest.mark.default
def test_lmq_names_and_keys_that_are_paths(store: Path) -> None:
    """Names of LMQ queues come from a property; their numbers may have thousands of digits."""
    for names, numbers in ((b"%LMQ%../../../precious", b"0"), (b"%LMQ%x", b"9" * 5000), (b"%LMQ%x,%LMQ%/y", b"-1,1"),
                           (b"%LMQ%x", "٣".encode()), (b"%LMQ%x", b"99999999999999999")):  # fmt: skip
        properties = b"INNER_MULTI_DISPATCH\1" + names + b"\2INNER_MULTI_QUEUE_OFFSET\1" + numbers + b"\2KEYS\1../k \0 k\2"
        write_log(store, {"topic": b"T", "properties": properties})
        examined(store, ["verify", "query T ../k", *WRITING])


def test_numbers_at_their_limits(store: Path) -> None:
    """Impossible queue ids and queue offsets are reported or skipped, and no position overflows 64 bits."""
    for fields in ({"queue_id": -1}, {"queue_id": 2**31 - 1}, {"queue_id": -(2**31)}, {"queue_offset": 2**63 - 1},
                   {"queue_offset": -(2**63)}, {"queue_offset": 2**62 // 20}, {"queue_offset": 2**59}):  # fmt: skip
        write_log(store, {"topic": b"T"}, {"topic": b"T", **fields}, {"topic": b"U", **fields})
        examined(store, ["verify", "dump --limit 50", "get --at 0", *WRITING])


@pytest.mark.parametrize("start", [2**63 - 65536, 2**63 - 1, 2**62, 2**40, 10**18])
def test_a_log_that_begins_near_the_largest_offset(store: Path, start: int) -> None:
    """The offset in the file's name leaves no room for the next file."""
    write_log(store)
    (store / "commitlog" / "00000000000000000000").unlink()
    data = crafted(b"T", at=start).ljust(65536, b"\0")
    (store / "commitlog" / f"{start:020d}").write_bytes(data)
    examined(store, [*READING, *WRITING])


def test_names_in_the_queue_folder(store: Path) -> None:
    """The names contain invalid UTF-8, terminal escapes or 200 digits."""
    queues = os.fsencode(store / "consumequeue")
    for name in (b"\xff\xfe", b"\x1b[2J\x1b]0;title\x07", b"new\nline", b"%RETRY%", b"x" * 255):
        os.makedirs(queues + b"/" + name + b"/0")
        Path(os.fsdecode(queues + b"/" + name + b"/0/00000000000000000000")).write_bytes(bytes(2000))
    for name in ("007", "9" * 200, "-1", "2147483648", "1e9", "\u0663"):
        (store / "consumequeue" / "T" / name).mkdir()
    answer = examined(store, [*READING, *WRITING])
    assert all("\x1b" not in talk for _code, talk in answer.values())


def test_many_queues(store: Path) -> None:
    """Three thousand empty queues need only a bounded number of descriptors."""
    for number in range(3000):
        (store / "consumequeue" / f"topic-{number:04d}" / "0").mkdir(parents=True)
    examined(store, ["info", "ls", "verify", "put T body"])


@pytest.mark.night
@pytest.mark.timeout(3000)
def test_a_million_queues(store: Path) -> None:
    """Listing and verification stay within the limits of memory, time and descriptors."""
    above = store / "consumequeue" / "T"
    for number in range(1, 1_000_000):
        (above / str(number)).mkdir()
    for command in ("info", "ls", "verify"):
        examined(store, [command])


@pytest.mark.default
def test_deeply_nested_and_extreme_json(store: Path) -> None:
    """The broker's files and the sidecars contain deeply nested values and huge numbers."""
    deep, long_number = "[" * 500_000, '{"end_offset": ' + "9" * 5000 + "}"
    infinite = '{"end_offset": Infinity, "last_offset": 1, "store_timestamp_ms": 1, "name": "x", "next_item": Infinity}'
    paths = '{"../../precious": [0], "T": [-1, 99999999999999, 1e400], "\\u0000": [0]}'
    for text in (deep, long_number, infinite, paths, '{"a":' * 200_000, '"\\ud800"', "\x00", "{}" * 9):
        for position in LOCATIONS[4:]:
            path = store / position
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        examined(store, ["info", "ls", "verify", "recover", "put T body"])


def test_a_compressed_body_that_grows_without_end(store: Path) -> None:
    """Decompression stops with a named error at 64 MiB; a raw dump shows the stored bytes."""
    bomb = zlib.compress(bytes(65 << 20), 9)  # 66 KB: a longer file than the others
    write_log(store, {"topic": b"T", "body": bomb, "sys_flag": 1}, {"topic": b"T", "queue_offset": 1})
    examined(store, ["dump --limit 50", "verify", "export"])
    with MessageStore.open(store, "r") as opened:
        message = opened.message_at(0)
        assert message is not None and message.body == bomb
        with pytest.raises(StoreCorrupt):
            opened.plain_body(message)


@pytest.mark.parametrize("kind", ["lz4", "zstd"])
def test_other_compressions_that_grow_without_end(store: Path, kind: str) -> None:
    """The same holds for lz4 and zstd in `plain_body`."""
    if kind == "lz4":
        frame = pytest.importorskip("lz4.frame")
        bomb, flag = frame.compress(bytes(65 << 20)), 1 << 8
    else:
        zstandard = pytest.importorskip("zstandard")
        bomb, flag = zstandard.ZstdCompressor().compress(bytes(65 << 20)), 2 << 8
    data = crafted(b"T", body=bomb, sys_flag=1 | flag)
    size = 1 << (len(data) + 64).bit_length()
    write_log(store)
    (store / "commitlog" / "00000000000000000000").write_bytes(data.ljust(size, b"\0"))
    examined(store, ["dump --limit 50", "verify", "export"])
    with MessageStore.open(store, "r") as opened:
        message = opened.message_at(0)
        assert message is not None
        with pytest.raises(StoreCorrupt):
            opened.plain_body(message)


def test_a_million_false_beginnings_of_records(store: Path) -> None:
    """Every 91 bytes is a placed header with a wrong checksum; the search after damage is linear.

    It used to checksum the rest of the file at each header: 300 GB for this file of 8 MiB.
    """
    size = 8 << 20
    data = bytearray(size)
    for at in range(100, size - 200, 91):
        head = bytearray(crafted(b"", at=at)[:88])
        body = size - at - 200
        struct.pack_into(">i", head, 0, body + 91)
        struct.pack_into(">i", head, 84, body)
        struct.pack_into(">i", head, 8, 12345)
        data[at : at + 88] = head
    write_log(store)
    data[-200:] = bytes(200)
    (store / "commitlog" / "00000000000000000000").write_bytes(data)
    examined(store, ["verify", "recover"])


def test_hash_collisions_in_the_index(store: Path) -> None:
    """Keys that share one slot make a long chain, not an endless one."""
    keys = ["".join(part) for part in _colliding(8)]
    assert len({java_hash_code(key) for key in keys}) == 1
    with MessageStore.open(store, "a", small_config(max_index_num=200)) as opened:
        for key in keys[:150]:
            opened.put(type(made_message(0))("T", b"b", keys=[key], queue_id=0))  # type: ignore[call-arg]
    examined(store, ["query T key", "verify"])


def _colliding(pairs: int) -> list[tuple[str, ...]]:
    import itertools

    return list(itertools.product(("Aa", "BB"), repeat=pairs))


@pytest.fixture
def vhost(outside: Path) -> Path:
    folder = unpacked("rabbitmq-clean", outside)
    deep = folder / "queues" / "18PFRXGVXXG0ZIS281F2ZCGPH"  # 2,895 messages take too long here
    shutil.rmtree(deep)
    return folder


RABBIT_LOCATIONS = [
    "msg_store_persistent/0.rdq", "msg_store_persistent/clean.dot", "msg_store_persistent/msg_store_index.ets",
    "msg_store_persistent/file_summary.ets", "queues/434QJ29PS1F7KJO6A26YZF1Z8/0.idx",
    "queues/434QJ29PS1F7KJO6A26YZF1Z8/journal.jif", "queues/434QJ29PS1F7KJO6A26YZF1Z8/.queue_name", ".vhost", ".config",
    "recovery.dets", "brokerstore/clean.json", "brokerstore/queues.json",
]  # fmt: skip


@pytest.mark.parametrize("strange", [fifo, link_to_a_device, folder_instead, sparse], ids=lambda strange: strange.__name__)
def test_each_rabbitmq_file_replaced_by_another_file_type(vhost: Path, strange: Callable[[Path], None]) -> None:
    """Pipes, links, folders and 4 TiB files replace each kind of file of a virtual host."""
    for position in RABBIT_LOCATIONS:
        path = vhost / position
        path.parent.mkdir(exist_ok=True)
        kept = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        strange(path)
        examined(vhost, ["verify", "recover"])
        path.rmdir() if path.is_dir() else path.unlink()
        if kept is not None:
            path.write_bytes(kept)


def test_unusable_sidecars_of_a_rabbitmq_folder_are_ignored(vhost: Path) -> None:
    """Unusable sidecars are ignored; they too may come from elsewhere."""
    own = vhost / "brokerstore"
    own.mkdir(exist_ok=True)
    kinds = ["[" * 100_000, '{"files": {}, "queues": {"x": ["a", "b"]}}',
             '{"q.mixed": {"durable": 7, "mode": [], "max_priority": -1}}',
             '{"q.mixed": {"max_priority": 1e400}}', '{"q.mixed": 5}', '{"../x": {"mode": "lazy"}}']  # fmt: skip
    for text in kinds:
        for name in ("clean.json", "queues.json"):
            (own / name).write_text(text)
        examined(vhost, RABBIT)
        with RabbitStore.open(str(vhost), "r+") as opened:
            assert "q.mixed" in opened.queue_names()


def test_deeply_nested_terms_instead_of_a_message(vhost: Path) -> None:
    """Lists are nested a hundred thousand deep; sizes of tuples, maps and atoms exceed the file."""
    deep = b"\x83" + b"l\0\0\0\1" * 100_000 + b"j" * 100_001
    tuples = b"\x83" + b"h\1" * 100_000 + b"j"
    terms = (deep, tuples, b"\x83l\xff\xff\xff\xffj", b"\x83i\x7f\xff\xff\xff", b"\x83t\xff\xff\xff\xff", b"\x83n\xff\0",
             b"\x83o\xff\xff\xff\xff\0", b"\x83P\xff\xff\xff\xff" + zlib.compress(bytes(65 << 20)))  # fmt: skip
    positions = [
        vhost / position for position in (*RABBIT_LOCATIONS[1:4], "queues/434QJ29PS1F7KJO6A26YZF1Z8/clean.dot", "recovery.dets")
    ]
    for term in terms:
        record = struct.pack(">Q16s", 16 + len(term), b"i" * 16) + term + b"\xff"
        (vhost / "msg_store_persistent" / "0.rdq").write_bytes(record)
        for path in positions:
            path.write_bytes(term)
        examined(vhost, ["verify"])
    examined(vhost, ["dump", "recover", "info"])


def test_names_of_queues_that_are_paths_or_markup(vhost: Path) -> None:
    """The tool shows the names with escapes and never uses them as paths."""
    for name in (b"../../precious", b"\x1b[31m", b"<script>", b"nul\0x", b"\xff\xfe"):
        (vhost / "queues" / "434QJ29PS1F7KJO6A26YZF1Z8" / ".queue_name").write_bytes(b"VHOST: /\nQUEUE: " + name + b"\n")
        answer = examined(vhost, RABBIT)
        assert all("\x1b" not in talk for _code, talk in answer.values())


def test_json_output_is_valid_for_hostile_names_and_bodies(store: Path) -> None:
    """Escapes, markup and lone surrogates in names and bodies become ASCII JSON."""
    from tests.brokerstore.tool import run

    for name in NAMES:
        write_log(store, {"topic": name, "body": name * 3})
        ran = run("dump", "--json", store)
        assert ran.out.isascii() and all(json.loads(line) for line in ran.out.splitlines())
        shown = run("dump", store)
        assert "\x1b" not in shown.out and "\x07" not in shown.out and "\u202e" not in shown.out
