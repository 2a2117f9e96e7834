"""Read the quorum queues of a node (docs/formats/rabbitmq-quorum.md#folder)."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from os import fsencode
from typing import Any, NamedTuple

from storageio import REAL_DISK, Closing, Disk, Kind, StoreCorrupt, UnsupportedFormat, read_head
from storebytes.finding import Finding, finding_of

from ..files import mapped
from ..format.config_text import damaged_name, machine_config, parse_config, queue_name
from ..format.message import Content
from ..format.terms import Atom
from ..read.json_cy import LineWriter
from .command_cy import CommandReader
from .entries import EntryTable, RaftEntry
from .entries_cy import EntryRun, take_records
from .machine import Machine
from .message import (
    CHECKED_OUT,
    DEAD_LETTERED,
    READY,
    Located,
    QuorumMessage,
    info_of,
    info_of_command,
    message_term,
    read_content,
    to_message,
)
from .messages import MessageList, QuorumContent
from .segment import read_segment
from .snapshot import Snapshot, read_snapshot
from .state import check_version, read_state
from .tables import TABLE_SIZE_MAX, meta_rows, read_rows, registered
from .versions import oldest_with
from .wal import WalRecord, WalScan

_WAL = re.compile(r"[0-9]{8,16}\.wal\Z")
_SEGMENT = re.compile(r"[0-9]{8,16}\.segment\Z")
_STATE = re.compile(r"[0-9A-F]{16}_([0-9A-F]{16})\Z")
_CONFIG_SIZE_MAX = 1 << 20
_STATES_MAX = 64
_FILLED_MAX = 1 << 16  # entries of one gap
_SETTINGS = b"\x0dupdate_config"
_READY_MORE = (READY, "", 0, 0, "")  # `QuorumMessage.more` of a message that was never delivered
_CLUSTER_COMMANDS = (  # the deletion of a queue is the only one; OTP 26 and later write atoms in the first form
    b"\x83h\x04w\x0b$ra_cluster",
    b"\x83h\x04d\x00\x0b$ra_cluster",
)
_FIRST_ENTRIES, _COMMAND_BEFORE = 64, 128  # of a log, and the bytes of each that have the name of its command
_SETTINGS_BEFORE = 4096  # bytes of an entry in which the name of its command is: processes have the names of their nodes


class LogGap(NamedTuple):
    """Entries between two of a queue's records in write-ahead logs; `position` is that of the later record."""

    file: str
    position: int
    first: int
    stop: int

    def filled_from(self, entries: EntryTable, log_start: int) -> list[int]:
        """Return the entries, if segments have all that are in the log; a start expects them in the write-ahead log.

        Nothing reads those before the log's start, but a server that finds one missing writes none of them to a segment.
        """
        if self.stop - self.first > _FILLED_MAX or any(
            index not in entries for index in range(max(self.first, log_start), self.stop)
        ):
            return []
        return list(range(self.first, self.stop))


class QuorumNode(Closing):
    """The quorum queues below `quorum/<node>/`; `close` unmaps the files.

    Damage is added to `problems`; `notes` has what a server drops or completes itself at its next start.
    """

    def __init__(self, path: str, disk: Disk = REAL_DISK) -> None:
        """Set the path; files are mapped on first use."""
        self.path = path
        self.disk = disk
        self.relative = "/".join(path.rstrip("/").rsplit("/", 2)[-2:])
        self.has_queues = self.relative.startswith("quorum/")
        self.problems: list[Finding] = []
        self.notes: list[Finding] = []
        self._stack = ExitStack()
        self.lost: set[tuple[str, int]] = set()
        self.gaps: dict[str, list[LogGap]] = {}
        self._logged: dict[str, EntryTable] | None = None
        self._applied: dict[str, int] | None = None
        self._owners: dict[str, str] = {}

    def close(self) -> None:
        """Unmap every file; nothing that was read before uses them."""
        self._stack.close()
        self._logged = None

    def map(self, file: str) -> memoryview:
        """Map a file below the node's folder until `close`."""
        return self._stack.enter_context(mapped(self.disk, f"{self.path}/{file}"))

    def queues(self) -> list[QuorumQueue]:
        """Return the folders with a `config` or a log, by the queue's name; the tables of the node may lack young ones.

        A registered queue that lost its folder, or its `config`, has what segments and write-ahead logs have of it.
        """
        names = [entry.name for entry in self.disk.list(self.path) if entry.kind is Kind.FOLDER]
        parts = ("config", "snapshots")
        found = [
            QuorumQueue(self, name) for name in names if any(self.disk.stat(f"{self.path}/{name}/{part}") for part in parts)
        ]
        known = {queue.registered_name for queue in found}
        known_folders = {queue.uid for queue in found}
        for name, uid in self.registered().items():
            if uid not in known_folders and name not in known and not self.is_deleted(uid):
                found.append(QuorumQueue(self, uid))
        return sorted(found, key=lambda queue: (queue.vhost, queue.queue, queue.uid))

    def registered(self) -> dict[str, str]:
        """Return the folder of each name in `names.dets`; nothing when it is damaged."""
        data = read_head(self.disk, f"{self.path}/names.dets", TABLE_SIZE_MAX)
        try:
            return {} if data is None else registered(read_rows(data, f"{self.relative}/names.dets"))
        except StoreCorrupt:  # reported by the check of the table
            return {}

    def is_deleted(self, uid: str) -> bool:
        """Return whether the log of a queue ends with its deletion: a kill soon after it leaves the queue in the tables."""
        entries = self.logged().get(uid)
        if entries is None or entries.last is None:
            return False
        entry = entries[entries.last]
        return bytes(entry.view[entry.at : entry.at + entry.size]).startswith(_CLUSTER_COMMANDS)

    def _has(self, file: str) -> bool:
        return self.disk.stat(f"{self.path}/{file}") is not None

    def logged(self) -> dict[str, EntryTable]:
        """Return the entries in the write-ahead logs by queue, read once."""
        if self._logged is None:
            self._logged = {}
            for name in self.wal_files():
                self._read_wal(name, self._logged)
        return self._logged

    def last_applied(self) -> dict[str, int]:
        """Return the last index by queue that a start applies before its elections; empty when `meta.dets` is damaged."""
        if self._applied is None:
            data = read_head(self.disk, f"{self.path}/meta.dets", TABLE_SIZE_MAX)
            try:
                rows = [] if data is None else meta_rows(read_rows(data, f"{self.relative}/meta.dets"))
            except StoreCorrupt:  # reported by the check of the table
                rows = []
            self._applied = {row.uid: row.last_applied or 0 for row in rows}
        return self._applied

    def check_end(self, queue: QuorumQueue) -> int:
        """Return how many entries `meta.dets` has as applied behind the end of a queue's log; they are a problem.

        So is a log without entries: a server takes its queue for one that is being declared, and holds no election.
        """
        applied, last = self.last_applied().get(queue.uid, 0), queue.entries().last or 0
        if 0 < last >= applied or 0 < (last := queue.last_index()) >= applied:
            return 0
        if not last:
            self.problems.append(Finding(queue.relative, 0, "missing_entries", "entry 1", "an empty log"))
        if applied > last:
            found = f"entry {last}; the later ones are lost, unless there is a copy of their write-ahead log"
            self.problems.append(Finding(queue.relative, 0, "applied_ahead", f"entry {applied}, the last applied one", found))
        return applied - last

    def wal_files(self) -> list[str]:
        """Return the names of the write-ahead logs, oldest first."""
        files = (entry.name for entry in self.disk.list(self.path) if entry.kind is Kind.FILE and _WAL.match(entry.name))
        return sorted(files, key=lambda name: int(name.partition(".")[0]))

    def wal_records(self, name: str) -> Iterator[tuple[str, WalRecord]]:
        """Yield the whole records of a write-ahead log, each with the folder that it belongs to; add damage to `problems`."""
        scan = self._wal_scan(name)
        for record in scan.records():
            yield self._owner(record, scan.file), record
        self.lost |= set(scan.lost)

    def _wal_scan(self, name: str) -> WalScan:
        self._find_owners()
        return WalScan(self.map(name), f"{self.relative}/{name}", self.problems, self.notes, self._owners)

    def _find_owners(self) -> None:
        if not self._owners:
            self._owners = {entry.name: entry.name for entry in self.disk.list(self.path) if entry.kind is Kind.FOLDER}

    def _owner(self, record: WalRecord, file: str) -> str:
        """Return the folder that a record belongs to.

        No checksum covers the name in a log.  A name without a folder is that of a deleted queue, or, if it differs from a
        folder's in one character, a damaged one.
        """
        if record.uid not in self._owners:
            close = [name for name in set(self._owners.values()) if _differences(name, record.uid) == 1]
            self._owners[record.uid] = close[0] if len(close) == 1 else record.uid
            if len(close) == 1:
                self.problems.append(Finding(file, record.position, "bad_wal_entry", f"name {close[0]}", record.uid))
        return self._owners[record.uid]

    def _read_wal(self, name: str, logged: dict[str, EntryTable]) -> None:
        scan = self._wal_scan(name)
        runs: dict[int, EntryRun] = {}
        words: dict[str, int] = {}
        try:
            for record in scan.records():
                uid = self._owner(record, scan.file)
                runs.pop(words.get(uid, 0), None)  # its run may end here
                words[uid] = scan.word_of(record)
                runs[words[uid]] = self._log(logged.setdefault(uid, EntryTable()), uid, record, scan)
                scan.position = take_records(scan.view, scan.position, runs)
        except UnsupportedFormat as error:
            self.problems.append(finding_of(error, ""))
        self.lost |= set(scan.lost)

    def _log(self, entries: EntryTable, uid: str, record: WalRecord, scan: WalScan) -> EntryRun:
        """Add a record to the entries of its queue."""
        last = record.index if entries.last is None else entries.last
        if record.index > last + 1 and not record.truncates:
            self.gaps.setdefault(uid, []).append(LogGap(scan.file, record.position, last + 1, record.index))
        return entries.put(record.index, RaftEntry(record.term, scan.view, scan.file, record.at, record.size), record.truncates)


def _differences(left: str, right: str) -> int:
    return sum(one != other for one, other in zip(left, right, strict=True)) if len(left) == len(right) else len(left)


def _is_of(name: Any, config: dict[Any, Any]) -> bool:
    """Return whether machine and members in a `config` have the form that the server writes, and the registered name."""
    machine, members = config.get(Atom("machine")), config.get(Atom("initial_members"))
    if not isinstance(machine, tuple) or len(machine) != 3 or machine[0] != "module" or not isinstance(machine[2], dict):
        return False
    if not isinstance(members, list) or any(not isinstance(one, tuple) or one[:1] != (name,) for one in members):
        return False
    resource = machine[2].get(Atom("queue_resource"))
    return bool(machine[2].get(Atom("name"), name) == name and config.get(Atom("metrics_key"), resource) in (resource, name))


class QuorumQueue:
    """One queue of a node."""

    def __init__(self, node: QuorumNode, uid: str) -> None:
        """Read `config`; a damaged one is a problem, and the queue has its folder's name."""
        self.node = node
        self.uid = uid
        self.relative = f"{node.relative}/{uid}"
        self.config: dict[Any, Any] = {}
        text = read_head(node.disk, f"{node.path}/{uid}/config", _CONFIG_SIZE_MAX) or b""
        try:
            self.config = self._checked(parse_config(text, f"{self.relative}/config"))
        except StoreCorrupt as error:
            node.problems.append(finding_of(error, "bad_queue_config"))
        self.vhost, self.queue = queue_name(self.config) or ("", uid)
        self.members = len(self.config.get(Atom("initial_members"), [None]))
        self.lost_entries = 0
        self._text = text
        self.has_version = self.has_unreadable_config = False
        self._log_start = 0
        self._last_ms = 0
        self._machine: Machine | None = None
        self._entries: EntryTable | None = None
        self._reader = CommandReader()

    def _checked(self, config: dict[Any, Any]) -> dict[Any, Any]:
        """Raise `StoreCorrupt` unless the names that a `config` repeats agree, and others are known: it has no checksum."""
        node, uid = Atom(self.node.path.rstrip("/").rpartition("/")[2]), fsencode(self.uid)
        identity, arguments = config.get(Atom("id")), config.get(Atom("log_init_args"))
        name = identity[0] if isinstance(identity, tuple) and identity else None
        found = (identity, config.get(Atom("cluster_name")), config.get(Atom("uid")))
        logged = arguments.get(Atom("uid")) if isinstance(arguments, dict) else None
        if found != ((name, node), name, uid) or logged != uid or not _is_of(name, config):
            expected = f"{name} of {node} in {self.uid}"
            raise StoreCorrupt("names differ", file=f"{self.relative}/config", offset=0, expected=expected, found=str(found))
        changed = damaged_name(config)
        if changed is not None:
            raise StoreCorrupt("wrong name", file=f"{self.relative}/config", offset=0, expected=changed[1], found=changed[0])
        return config

    @property
    def log_start(self) -> int:
        """Return the index of the first entry that the log must have: the one after the snapshot."""
        self.snapshots()
        return self._log_start

    @property
    def machine_config(self) -> dict[Any, Any]:
        """The settings at the declaration; an empty map when `config` lacks them."""
        return machine_config(self.config)

    def _files(self, folder: str, pattern: re.Pattern[str]) -> list[str]:
        path = f"{self.node.path}/{self.uid}/{folder}"
        if self.node.disk.stat(path) is None:
            return []
        return sorted(entry.name for entry in self.node.disk.list(path) if pattern.match(entry.name))

    @property
    def registered_name(self) -> Atom | None:
        """Return the name of the queue's process, under which `names.dets` has the folder; None when `config` lacks it."""
        identity = self.config.get(Atom("id"))
        name = identity[0] if isinstance(identity, tuple) and identity else None
        return name if isinstance(name, Atom) else None

    def files(self) -> list[str]:
        """Return the segments and the folders of the states, below the queue's folder."""
        states = [f"{folder}/{name}" for folder in ("snapshots", "checkpoints") for name in self._files(folder, _STATE)]
        return self._files(".", _SEGMENT) + states

    def segment_count(self) -> int:
        """Return the number of segment files."""
        return len(self._files(".", _SEGMENT))

    def entries(self) -> EntryTable:
        """Return the log: segments, then what the write-ahead logs have; read once."""
        if self._entries is None:
            self._entries = EntryTable()
            for name in self._files(".", _SEGMENT):
                self._read_segment(name, self._entries)
            for run in self.node.logged().get(self.uid, EntryTable()).runs:
                self._entries.add(run)
        return self._entries

    def last_index(self) -> int:
        """Return the index of the last entry, or of a newer state."""
        return max([self.entries().last or 0, *(state.index for state in self.snapshots()[:1])])

    def _read_segment(self, name: str, entries: EntryTable) -> None:
        view, file = self.node.map(f"{self.uid}/{name}"), f"{self.relative}/{name}"
        try:
            for run in read_segment(view, file, self.node.problems):
                entries.add(run)
        except (StoreCorrupt, UnsupportedFormat) as error:
            self.node.problems.append(finding_of(error, "bad_segment_head"))

    def snapshots(self) -> list[Snapshot]:
        """Return the readable snapshots and checkpoints, newest first; damaged ones are problems."""
        self._log_start = 0
        states: list[tuple[int, str]] = []
        begun: list[tuple[int, str]] = []
        for folder in ("snapshots", "checkpoints"):
            for name in self._files(folder, _STATE)[-_STATES_MAX:]:
                match = _STATE.match(name)
                file = f"{self.uid}/{folder}/{name}/snapshot.dat"
                is_there = self.node.disk.stat(f"{self.node.path}/{file}") is not None
                (states if is_there else begun).append((int(match[1], 16) if match else 0, file))
        found = [self._read_snapshot(file) for _index, file in sorted(states, reverse=True)]
        for index, file in begun:
            self._report_missing(index, f"{self.node.relative}/{file}")
        return [one for one in found if one is not None]

    def _report_missing(self, index: int, file: str) -> None:
        """Report a state without its file: as a note if a kill came before it, and the log has the entries of the state.

        A server skips a snapshot without a file, and ends with an error at such a checkpoint.
        """
        entries, first = self.entries(), self._log_start
        is_begun = "/snapshots/" in file and entries.count(first, index + 1) == max(0, index + 1 - first)
        name, report = ("unfinished_snapshot", self.node.notes) if is_begun else ("bad_snapshot", self.node.problems)
        report.append(Finding(file, 0, name, "a state", "no file", is_problem=not is_begun))

    def _read_snapshot(self, file: str) -> Snapshot | None:
        name = f"{self.node.relative}/{file}"
        try:
            found = read_snapshot(self.node.map(file), name)
            if "/snapshots/" in file:
                self._log_start = max(self._log_start, found.index + 1)
            return found
        except (StoreCorrupt, UnsupportedFormat) as error:
            self.node.problems.append(finding_of(error, "bad_snapshot"))
            return None

    def machine(self) -> Machine:
        """Return the state after the last entry; raise `UnsupportedFormat` for a version of the machine that is not known.

        Of several members, this is what the queue becomes if all entries of this one are committed.
        """
        if self._machine is None:
            machine, first = self._start()
            self._replay(machine, first)
            if machine.unknown:
                supported = "those of RabbitMQ 3.8 to 4.2"
                raise UnsupportedFormat("queue machine command", file=self.relative, found=machine.unknown, supported=supported)
            self._machine = machine
            self._check_text(machine)
        return self._machine

    def _check_text(self, machine: Machine) -> None:
        """Report a `config` with a Latin-1 name that an older server wrote, and does not read at its next start."""
        try:
            self._text.decode()
        except UnicodeDecodeError as error:
            self.has_unreadable_config = machine.rules.reads_utf8_config
            if self.has_unreadable_config:
                found = f"Latin-1; a server of 3.8 does not start queue {self.queue!r}"
                file = f"{self.relative}/config"
                self.node.problems.append(Finding(file, error.start, "bad_queue_config", "a name in UTF-8", found))

    def _start(self) -> tuple[Machine, int]:
        """Return the newest state that can be decoded, and the index of the first entry to apply."""
        for found in self.snapshots():
            self.has_version = True
            try:
                return read_state(*found.split(), found.machine_version, f"{self.relative}/snapshots"), found.index + 1
            except StoreCorrupt as error:
                self.node.problems.append(finding_of(error, "bad_snapshot"))
        return Machine.declared(self.machine_config), 0

    def _replay(self, machine: Machine, first: int) -> None:
        """Apply the entries from `first` on in order of their index; gaps are problems."""
        entries = self.entries()
        for gap, _indexes in self.wal_gaps():
            found = Finding(gap.file, gap.position, "bad_wal_entry", f"entry {gap.first}", f"entry {gap.stop}")
            self.node.problems.append(found)
        self.check_start(first)
        expected = first
        applied = self.node.last_applied().get(self.uid, 0)
        for run in entries.runs:
            index = max(run.first, first)
            while index < run.stop:
                if index > applied and machine.monitored is None:
                    machine.become_leader()
                if index > expected:
                    self._gap(machine, expected, index)
                self._apply(machine, index, entries[index])
                stop = run.stop if machine.monitored is not None else min(run.stop, applied + 1)
                index = expected = index + 1 + self._apply_following(machine, run, index + 1, stop)

    def wal_gaps(self) -> Iterator[tuple[LogGap, list[int]]]:
        """Yield each gap of the write-ahead logs with the entries that the segments have for it."""
        for gap in self.node.gaps.get(self.uid, []):
            found = gap.filled_from(self.entries(), self._log_start)
            if found:
                yield gap, found

    def check_start(self, first: int) -> None:
        """Report entries that are missing before `first`: a start needs all entries after the snapshot."""
        entries = self.entries()
        if entries.count(self._log_start, first) < first - self._log_start:
            expected = next(index for index in range(self._log_start, first) if index not in entries)
            self.node.problems.append(Finding(self.relative, 0, "missing_entries", f"entry {expected}", f"entry {first}"))

    def _gap(self, machine: Machine, expected: int, found: int) -> None:
        self._be_lenient(machine)
        self.lost_entries += found - expected
        self.node.problems.append(Finding(self.relative, 0, "missing_entries", f"entry {expected}", f"entry {found}"))

    def _apply(self, machine: Machine, index: int, entry: RaftEntry) -> None:
        plain = self._reader
        plain.counts_properties = machine.rules.counts_properties
        if plain.read(entry.view, entry.at, entry.size):
            self._last_ms = plain.time_ms
            machine.enqueue(index, plain.time_ms, plain.pid, plain.number, info_of_command(plain))
            return
        try:
            term = entry.decode()
        except StoreCorrupt as error:
            self.node.problems.append(finding_of(error, "bad_entry"))
            self._be_lenient(machine)
            self.lost_entries += 1
            return
        if not isinstance(term, tuple) or not term:
            return
        if term[0] == "noop" and len(term) == 3 and isinstance(term[2], int):
            check_version(term[2], entry.file, entry.at)
            machine.set_version(term[2])
            self.has_version = True
        elif term[0] == "$usr" and len(term) == 4:
            meta, command, reply_mode = term[1:]
            time = meta.get(Atom("ts")) if isinstance(meta, dict) else None
            self._last_ms = time if isinstance(time, int) else self._last_ms
            try:
                machine.apply(index, time if isinstance(time, int) else 0, command, reply_mode, info_of(command))
            except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
                found = Finding(entry.file, entry.at, "bad_entry", "a command of a queue", f"{error}")
                self.node.problems.append(found)
                self._be_lenient(machine)
                self.lost_entries += 1

    def _be_lenient(self, machine: Machine) -> None:
        """Accept messages whose predecessors are missing; without an entry that has the version, guess it."""
        machine.is_lenient = True
        if not self.has_version:
            machine.set_version(self.oldest_version())

    def oldest_version(self) -> int:
        """Return the oldest version of the machine that can have made what the queue has."""
        first = (self.entries()[index] for index in list(self.entries())[:_FIRST_ENTRIES])
        heads = [bytes(entry.view[entry.at : entry.at + min(entry.size, _COMMAND_BEFORE)]) for entry in first]
        settings = self.last_settings()
        if settings is not None:
            heads.append(bytes(settings.view[settings.at : settings.at + settings.size]))
        return oldest_with([self._text, *heads])

    def _apply_following(self, machine: Machine, run: EntryRun, index: int, stop: int) -> int:
        """Apply the plain messages that follow one of the same publisher, and return their number."""
        pid = self._reader.pid
        number = machine.enqueuers.get(pid)
        if number is None or index >= stop or not machine.is_idle():
            return 0
        found = self._reader.follow(run, index, stop, number)
        if found:
            self._last_ms = self._reader.time_ms
            machine.enqueue_plain(pid, found)
        return len(found)

    def ordered(self) -> Iterator[Located]:
        """Yield messages without their content in the order of `messages`."""
        for part in self._ordered_parts():
            if isinstance(part, Located):
                yield part
            else:
                messages, numbers = part
                for number in numbers:
                    yield Located(messages.of(number), READY, "", "")

    def _ordered_parts(self) -> Iterator[Located | tuple[MessageList, array[int]]]:
        """Yield messages in the order of `messages`, and parts of a list whose messages are all ready."""
        machine = self.machine()
        held = {message.index: _tag(tag) for tag, message in machine.held()}
        by_index = {message.index: message for _tag, message in machine.held()}
        restarted = self.restarted() if held else machine
        if restarted is not machine:
            moved = {message.index for message in restarted.returns} | restarted.dropped.keys()
            parts: list[Iterable[QuorumContent]] = [*machine.lists(), machine.returns]
            for part in parts:
                by_index |= {message.index: message for message in part if message.index in moved}
        for message in restarted.returns:
            yield _located(by_index.pop(message.index, message), held)
        for messages in restarted.ready_lists():
            for numbers in messages.blocks():
                if not by_index:
                    yield messages, numbers
                    continue
                for message in map(messages.of, numbers):
                    yield _located(by_index.pop(message.index, message), held)
        for index, message in by_index.items():
            yield _located(message, held)._replace(reason=restarted.dropped.get(index, ""))
        yield from (Located(message, DEAD_LETTERED, "", reason) for reason, message in machine.dead.every())

    def restarted(self) -> Machine:
        """Return the state after a start of the server, at the time of the last entry."""
        return self.machine().restarted(self._last_ms)

    def entry_of(self, message: QuorumContent) -> RaftEntry | None:
        """Return the entry with a message's content; None, with the problem added, when the content cannot be read."""
        found = self._content(message.index)
        return None if found is None else found[1]

    def last_settings(self) -> RaftEntry | None:
        """Return the last entry of the log that changed the queue's settings."""
        for index in reversed(self.entries()):
            entry = self.entries()[index]
            if _SETTINGS in bytes(entry.view[entry.at : entry.at + min(entry.size, _SETTINGS_BEFORE)]):
                try:
                    term = entry.decode()
                except StoreCorrupt:  # reported where the entry is applied
                    continue
                if isinstance(term, tuple) and len(term) == 4 and isinstance(term[2], tuple) and term[2][0] == "update_config":
                    return entry
        return None

    def messages(self, *, by_number: bool = False) -> Iterator[QuorumMessage]:
        """Yield messages in the order in which a server started on this folder delivers them, or in that of their numbers.

        Those follow that a start drops, because a limit counts what consumers held as well, and the dead-lettered ones.
        """
        run: EntryRun | None = None
        rows = sorted(self.ordered(), key=lambda located: located.message.index) if by_number else self.ordered()
        for located in rows:
            run = self.entries().find(located.message.index, run)
            message = self._read(located, run)
            if message is not None:
                yield message

    def lines(self, lines: LineWriter, capacity: int) -> Iterator[QuorumMessage | None]:
        """Write the JSON of plain ready messages, and yield all others, in the order of `messages`.

        The caller adds those, and takes the lines whenever None is yielded: `capacity` bytes are full.
        """
        for part in self._ordered_parts():
            if not isinstance(part, Located):
                yield from self._lines_of(*part, lines, capacity)
            elif (message := self._read(part, self.entries().run_of(part.message.index))) is not None:
                yield message

    def _lines_of(
        self, messages: MessageList, numbers: array[int], lines: LineWriter, capacity: int
    ) -> Iterator[QuorumMessage | None]:
        at, run = 0, None
        while at < len(numbers):
            located = Located(messages.of(numbers[at]), READY, "", "")
            run = self.entries().find(located.message.index, run)
            stop = at if run is None else self._write_lines(lines, run, numbers, at, capacity)
            if lines.size >= capacity:
                yield None
            elif stop == at:
                stop += 1
                message = self._read(located, run)
                if message is not None:
                    yield message
            at = stop

    def _write_lines(self, lines: LineWriter, run: EntryRun, numbers: array[int], at: int, capacity: int) -> int:
        """Set what the lines of plain ready messages share, write them, and return where the first other one is."""
        lines.set_shared((self.queue, self.vhost), run.file, (QuorumMessage.MORE, _READY_MORE), is_embedded=True)
        return self._reader.write_lines(lines, run, numbers, at, capacity)

    def _read(self, located: Located, run: EntryRun | None) -> QuorumMessage | None:
        """Return a message with its content, from its entry in a run if there is one."""
        index, plain = located.message.index, self._reader
        if run is not None and plain.read(run.view, run.position(index), run.size(index)):
            content = tuple.__new__(Content, plain.content(self.vhost))
            return to_message(located, content, self.queue, (run.file, run.position(index)))
        found = self._content(index)
        return None if found is None else to_message(located, found[0], self.queue, (found[1].file, found[1].at))

    def _content(self, index: int) -> tuple[Content, RaftEntry] | None:
        entry = self.entries().get(index)
        if entry is None:
            self.node.problems.append(Finding(self.relative, 0, "lost_body", f"entry {index}", "no entry"))
            self.lost_entries += 1
            return None
        try:
            term = entry.decode()
            command = term[2] if isinstance(term, tuple) and len(term) == 4 else None
            return read_content(message_term(command), self.vhost, entry.file, entry.at), entry
        except (StoreCorrupt, UnsupportedFormat) as error:
            self.node.problems.append(finding_of(error, "bad_entry"))
            return None


def _located(message: QuorumContent, held: dict[int, str]) -> Located:
    is_held = message.index in held
    return Located(message, CHECKED_OUT if is_held else READY, held.get(message.index, ""), "")


def _tag(tag: Any) -> str:
    return tag.decode("utf-8", "replace") if isinstance(tag, bytes) else str(tag)


def quorum_nodes(node: str, disk: Disk = REAL_DISK, *, folder: str = "quorum") -> list[QuorumNode]:
    """Return the folders below `quorum`, or below `coordination`, of a node's folder; normally one."""
    path = f"{node}/{folder}"
    if disk.stat(path) is None:
        return []
    names = sorted(entry.name for entry in disk.list(path) if entry.kind is Kind.FOLDER)
    return [QuorumNode(f"{path}/{name}", disk) for name in names]
