"""A virtual host's folder damaged at each of its entries: flipped heads, cuts at borders, extra bytes, removed files.

Entries are located as docs/formats/rabbitmq-index.md and rabbitmq-rdq.md describe, without the library's readers.
"""

from __future__ import annotations

import itertools
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rabbitstore import IndexSettings, RabbitSettings, RabbitStore, apply_recovery, plan_recovery, verify
from storageio import StoreError
from tests.faults.golden import flipped, unpacked

# Queues of every kind with 53 of the 3,068 messages, and their message files: judging a flip takes milliseconds.
SMALL_QUEUES = ("q.mixed", "q.props", "q.fan1", "q.fan2", "q.prio")
RDQ_HEAD, RDQ_TAIL, IDX_PUBLISH, IDX_MARK, JIF_PUBLISH, JIF_MARK = 24, 1, 34, 2, 40, 8
LARGE = "msg_store_persistent/0.rdq", "msg_store_persistent/1.rdq", "msg_store_persistent/6.rdq"
CLEAN = ("recovery.dets", "clean.dot", "file_summary.ets", "msg_store_index.ets")
# Fields that nothing in the formats covers (docs/safety.md#fields-without-protection).
UNCOVERED = {"expiry_us", "persistent", "size", "seq_id", "redelivered"}
GONE = "a message is gone, unsaid"
SMALL_SEGMENT = 4
Key = tuple[str, Any]


class Entry(NamedTuple):
    """Bytes start..stop of a file; `heads` are its fixed bytes, `message` is the message's id or sequence number."""

    file: Path
    kind: str
    start: int
    stop: int
    heads: tuple[tuple[int, int], ...]
    message: bytes | int

    @property
    def bits(self) -> Iterator[int]:
        """Yield the bits of the heads."""
        return itertools.chain.from_iterable(range(8 * low, 8 * high) for low, high in self.heads)


def entries_of(file: Path, segment_entries: int) -> Iterator[Entry]:
    """Yield every entry of a file, from its first byte to its last."""
    data, at = file.read_bytes(), 0
    reader = {".rdq": _record, ".idx": _segment_entry, ".jif": _journal_entry}[file.suffix]
    first = int(file.stem) * segment_entries if file.suffix == ".idx" else 0
    while at < len(data):
        entry = reader(file, data, at, first)
        yield entry
        at = entry.stop


def _record(file: Path, data: bytes, at: int, _first: int) -> Entry:
    stop = at + 9 + struct.unpack_from(">Q", data, at)[0]
    assert data[stop - 1] == 255
    return Entry(file, "record", at, stop, ((at, at + RDQ_HEAD), (stop - RDQ_TAIL, stop)), data[at + 8 : at + RDQ_HEAD])


def _segment_entry(file: Path, data: bytes, at: int, first: int) -> Entry:
    head = struct.unpack_from(">H", data, at)[0]
    number = first + (head & 0x3FFF)
    if head & 0x8000:
        stop = at + IDX_PUBLISH + struct.unpack_from(">I", data, at + IDX_PUBLISH - 4)[0]
        return Entry(file, "segment publish", at, stop, ((at, at + IDX_PUBLISH),), number)
    assert head & 0x4000
    return Entry(file, "segment mark", at, at + IDX_MARK, ((at, at + IDX_MARK),), number)


def _journal_entry(file: Path, data: bytes, at: int, _first: int) -> Entry:
    head = struct.unpack_from(">Q", data, at)[0]
    number = head & (1 << 62) - 1
    if head >> 62 < 2:
        stop = at + JIF_PUBLISH + struct.unpack_from(">I", data, at + JIF_PUBLISH - 4)[0]
        return Entry(file, "journal publish", at, stop, ((at, at + JIF_PUBLISH),), number)
    return Entry(file, "journal mark", at, at + JIF_MARK, ((at, at + JIF_MARK),), number)


def small_vhost(above: Path) -> Path:
    """Unpack the real server's folder with SMALL_QUEUES alone.

    The clean-stop files are deleted, because they describe all queues.
    """
    folder = unpacked("rabbitmq-clean", above)
    for queue in list((folder / "queues").iterdir()):
        if (queue / ".queue_name").read_bytes().split(b"QUEUE: ")[1].split(b"\0")[0].rstrip().decode() not in SMALL_QUEUES:
            shutil.rmtree(queue)
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        is_other = path.suffix == ".rdq" and path.relative_to(folder).as_posix() not in LARGE
        if path.name in CLEAN or is_other:
            path.unlink()
    return folder


class Vhost:
    """A folder to be damaged, its entries, and its content before the damage."""

    def __init__(self, folder: Path, segment_entries: int = 2048) -> None:
        self.folder = folder
        self.segment_entries = segment_entries
        self.files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
        self.entries = [
            entry
            for path in self.files if path.suffix in (".rdq", ".idx", ".jif")
            for entry in entries_of(path, segment_entries)
        ]  # fmt: skip
        self.rows = self.read(include_acked=False)
        self.known = Counter(_key(row) for row in self.rows)
        self.published = Counter(_key(row) for row in self.read(include_acked=True))
        self.folders = {
            path.parent.name: self._queue_of(path.parent) for path in self.files if path.parent.parent.name == "queues"
        }
        assert verify(str(folder)).problems == [] and self.known

    def _queue_of(self, folder: Path) -> str:
        return (folder / ".queue_name").read_bytes().split(b"QUEUE: ")[1].rstrip(b"\n").split(b"\0")[0].decode()

    def read(self, *, include_acked: bool = False) -> list[Any]:
        """Return the messages that a reader gets."""
        return list(RabbitStore.open(str(self.folder), "r").folder().messages(include_acked=include_acked))

    def messages_of(self, entry: Entry) -> set[Key]:
        """Return the messages that an entry refers to, which may be lost with it."""
        if isinstance(entry.message, bytes):
            return {_key(row) for row in self.rows if row.msg_id == entry.message}
        queue = self.folders[entry.file.parent.name]
        return {_key(row) for row in self.rows if (row.queue, row.seq_id) == (queue, entry.message)}

    def judge(self, touched: set[Key], where: str, *, recovers: Path | None = None, names: bool = True) -> str:
        """Return `named`, `same`, GONE, or the uncovered fields that differ; any other effect is an AssertionError.

        The messages of `touched` may be missing if the damage is reported.  With `recovers`, a copy is recovered in that folder
        and must keep all others.
        """
        try:
            seen = verify(str(self.folder))
            problems = [problem.kind for problem in (*seen.problems, *seen.notes)]
            rows = self.read()
        except StoreError as error:
            problems, rows = [type(error).__name__], []
        else:
            self.check(rows, touched, where, names=names)
        if recovers is not None:
            self.check_recovery(recovers, touched, where, names=names)
        if problems:
            return "named"
        gone = self.known - Counter(_key(row) for row in rows)
        assert set(gone) <= touched, f"{where}: messages are gone and nothing was said"
        if gone:
            return GONE
        pairs = list(zip(self.rows, rows, strict=False))
        changed = {name for name in UNCOVERED if any(getattr(old, name) != getattr(new, name) for old, new in pairs)}
        return "+".join(sorted(changed)) or "same"

    def check(self, rows: list[Any], touched: set[Key], where: str, *, names: bool) -> None:
        """Assert that every row was published, none comes twice, and no untouched message is missing."""

        def cut(counts: Counter[Key]) -> Counter[Any]:
            return counts if names else Counter(content for _queue, content in counts.elements())

        given = cut(Counter(_key(row) for row in rows))
        strange = given - cut(self.published)
        assert not strange, f"{where}: given out and never published, or twice: {next(iter(strange))}"
        missing = cut(Counter(key for key in self.known.elements() if key not in touched)) - given
        assert not missing, f"{where}: {missing.total()} messages of untouched entries are gone"

    def check_recovery(self, copy: Path, touched: set[Key], where: str, *, names: bool) -> None:
        """Assert that one recovery repairs everything, leaves nothing for a second, and loses no untouched message."""
        shutil.copytree(self.folder, copy)
        try:
            apply_recovery(str(copy))
            left = [step for step in plan_recovery(str(copy)).steps if step.kind != "write_name"]
            assert not left, f"{where}: a second recovery has something to do: {left}"
            rows = list(RabbitStore.open(str(copy), "r").folder().messages())  # a name may stay unknown
            self.check(rows, touched, f"{where}, recovered", names=names)
        finally:
            shutil.rmtree(copy)

    def flip(self, entry: Entry, bit: int, recovers: Path | None = None) -> str:
        """Flip one bit of an entry's head; a changed number may be that of another message."""
        with flipped(entry.file, bit):
            where = f"{entry.file.name} {entry.kind} at {entry.start} bit {bit - 8 * entry.start}"
            touched = self.messages_of(entry) | self.messages_of(self._renumbered(entry))
            found = self.judge(touched, where, recovers=recovers)
        is_number = entry.file.suffix == ".jif" and bit < 8 * (entry.start + JIF_MARK)  # maybe that of another message
        assert found != GONE or entry.kind.endswith("mark") or is_number, f"{where}: a message is gone and nothing was said"
        return f"{entry.kind}: {found}"

    def _renumbered(self, entry: Entry) -> Entry:
        """Return the entry with the number that the file has now."""
        data = entry.file.read_bytes()
        if entry.file.suffix == ".idx":
            first = int(entry.file.stem) * self.segment_entries
            return entry._replace(message=first + (struct.unpack_from(">H", data, entry.start)[0] & 0x3FFF))
        if entry.file.suffix == ".jif":
            return entry._replace(message=struct.unpack_from(">Q", data, entry.start)[0] & (1 << 62) - 1)
        return entry

    def cuts(self) -> Iterator[tuple[Path, int]]:
        """Yield (file, size) for each entry's end and up to 8 bytes before and after it."""
        for entry in self.entries:
            size = entry.file.stat().st_size
            yield from ((entry.file, at) for at in range(max(entry.stop - 8, 0), min(entry.stop + 9, size)))

    def cut(self, file: Path, size: int, recovers: Path | None = None) -> str:
        """Cut a file: entries before the cut survive, and a torn one is reported.

        An index that ends at a border or in zeros is valid: without a clean stop nothing tells what followed.
        """
        data = file.read_bytes()
        entries = [entry for entry in self.entries if entry.file == file]
        touched = {key for entry in entries if entry.stop > size for key in self.messages_of(entry)}
        border = max((entry.stop for entry in entries if entry.stop <= size), default=0)
        with rewritten(file, data[:size]):
            found = self.judge(touched, f"{file.name} cut to {size}", recovers=recovers)
        assert found == "named" or not any(data[border:size]), (
            f"{file.name} cut to {size}, inside an entry, and nothing was said"
        )
        assert found == "named" or file.suffix != ".rdq" or not touched, f"{file.name} cut to {size}, and nothing was said"
        return f"{file.suffix}: {found}"

    def tails(self, file: Path) -> Iterator[tuple[str, bytes, set[Key]]]:
        """Yield bytes that a file may have after its end, and the messages that they refer to."""
        entries, data = [entry for entry in self.entries if entry.file == file], file.read_bytes()
        yield "zeros", bytes(700), set()
        for entry in entries[:: max(len(entries) // 8, 1)]:
            yield "a stale entry", data[entry.start : entry.stop], self.messages_of(entry)
            yield "half an entry", data[entry.start : (entry.start + entry.stop) // 2], self.messages_of(entry)
            stale = {key for other in entries if other.start >= entry.start for key in self.messages_of(other)}
            yield "a stale end", data[entry.start :], stale

    def tail(self, file: Path, what: str, data: bytes, touched: set[Key], recovers: Path | None = None) -> str:
        """Append bytes to a file."""
        with rewritten(file, file.read_bytes() + data):
            found = self.judge(touched, f"{what} behind {file.name}", recovers=recovers)
        is_mark = file.suffix == ".idx" and len(data) == IDX_MARK  # the second mark of a message is its acknowledgement
        assert found in ("named", "same") or is_mark, f"{what} behind {file.name}: {found}"
        return f"{file.suffix}, {what}: {found}"

    def gone(self, file: Path, recovers: Path | None = None) -> str:
        """Remove a file.  A missing index file may lose its messages silently, a missing message file may not."""
        data = file.read_bytes()
        touched = {key for entry in self.entries if entry.file == file for key in self.messages_of(entry)}
        file.unlink()
        try:
            found = self.judge(touched, f"{file.name} gone", recovers=recovers, names=file.name != ".queue_name")
        finally:
            file.write_bytes(data)
        assert found == "named" or not (touched and file.suffix == ".rdq"), f"{file.name} is gone and nothing was said"
        return f"{file.suffix or file.name}: {found}"


@contextmanager
def rewritten(file: Path, data: bytes) -> Iterator[None]:
    """Replace a file's bytes, and restore them afterwards."""
    before = file.read_bytes()
    file.write_bytes(data)
    try:
        yield
    finally:
        file.write_bytes(before)


def stopped_cleanly(folder: Path) -> Vhost:
    """Make a small store, stopped cleanly, with both kinds of entries and a delivered message."""
    settings = RabbitSettings(background=False, index_version=1, index=IndexSettings(segment_entries=SMALL_SEGMENT))
    with RabbitStore.open(str(folder), settings=settings) as store:
        for name in ("a", "b"):
            store.declare_queue(name)
        for number in range(6):
            store.publish(["a", "b"] if number % 3 == 0 else "a", b"%d" % number * (5000 if number % 3 == 0 else 20))
        store.get("a")
    return Vhost(folder, SMALL_SEGMENT)


def clean_bits(vhost: Vhost) -> Iterator[tuple[Path, int]]:
    """Yield every bit of the clean-stop files."""
    for path in vhost.files:
        if path.name in CLEAN:
            yield from ((path, bit) for bit in range(8 * path.stat().st_size))


def flip_clean(vhost: Vhost, path: Path, bit: int, opens: Path | None = None) -> str:
    """Flip one bit: it is reported, or only redelivered flags change.

    With `opens`, an opening for writing has every message.
    """
    with flipped(path, bit):
        where = f"{path.name} bit {bit}"
        found = vhost.judge(set(), where, recovers=opens)
        if opens is not None:
            _open_in_copy(vhost, opens, where)
    assert found in ("named", "same", "redelivered"), f"{where}: {found}"
    return f"{path.name}: {found}"


def _open_in_copy(vhost: Vhost, copy: Path, where: str) -> None:
    shutil.copytree(vhost.folder, copy)
    try:
        with RabbitStore.open(str(copy), "r+", settings=RabbitSettings(background=False)) as store:
            for name in store.queue_names():
                bodies = [delivery.body for delivery in iter(lambda name=name: store.get(name), None)]  # type: ignore[misc]
                assert bodies == [row.body for row in vhost.rows if row.queue == name], (
                    f"{where}: other messages after an opening"
                )
    finally:
        shutil.rmtree(copy)


class Sweep(NamedTuple):
    """One kind of damage: its places, and the function that damages one; with a folder it recovers a copy there too."""

    name: str
    paths: list[tuple[Any, ...]]
    do: Callable[..., str]

    def run(self, start: int, stop: int, step: int, copy: Path, recovers_every: int) -> Counter[str]:
        """Damage each `step`-th of the places start..stop; count the results."""
        found: Counter[str] = Counter()
        for number, position in enumerate(self.paths[start:stop:step]):
            found[self.do(*position, copy if number % recovers_every == 0 else None)] += 1
        return found


def sweeps(above: Path) -> list[Sweep]:
    """Return all sweeps, over folders of their own below `above`."""
    vhost, own = Vhost(small_vhost(above)), stopped_cleanly(above / "own")
    indexed = [file for file in vhost.files if file.suffix in (".rdq", ".idx", ".jif")]
    return [
        Sweep("bits of heads", [(entry, bit) for entry in vhost.entries for bit in entry.bits], vhost.flip),
        Sweep("cuts at borders", list(vhost.cuts()), vhost.cut),
        Sweep("bytes behind the end", [(file, *tail) for file in indexed for tail in vhost.tails(file)], vhost.tail),
        Sweep("files gone", [(file,) for file in vhost.files], vhost.gone),
        Sweep("bits of clean-stop files", list(clean_bits(own)), partial(flip_clean, own)),
    ]


def _key(row: Any) -> Key:
    return row.queue, row.content
