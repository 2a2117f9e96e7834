"""Plan the repair of a node's quorum queues (docs/formats/rabbitmq-quorum.md#recovery).

A damaged write-ahead log is written again without its bad records.  A queue whose log has a gap, or whose state is damaged,
gets a new log: every message that can be read becomes an enqueue, in the order of delivery.  The tables get missing rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from os import fsencode
from typing import Any

from storageio import StoreCorrupt, UnsupportedFormat, read_head
from storebytes.finding import Finding, finding_of
from storebytes.plan import Cost, Plan

from ..files import read_if_there
from ..format.config_text import format_config
from ..format.dets_table import write_dets
from ..format.terms import UNDEFINED, Atom, Term
from ..staging import Staging, charge
from .coordinator import is_writer_entry
from .encode import (
    FIRST_ENTRY,
    SEGMENT_ENTRIES,
    LogEntry,
    LogRecord,
    new_leader,
    plain_enqueue,
    segment_pieces,
    update_config,
    wal_pieces,
)
from .entries import RaftEntry
from .folder import QuorumNode, QuorumQueue
from .message import DEAD_LETTERED
from .messages import QuorumContent
from .tables import read_rows
from .wal import View

_NEEDS_NEW_LOG = {"bad_segment_head", "bad_segment_entry", "bad_snapshot", "bad_entry", "missing_entries", "lost_body"}
_NEEDS_NEW_WAL = {"bad_wal_head", "bad_wal_entry", "torn_wal_entry"}
_KHEPRI = b"khepri_db"  # the feature flag
COORDINATOR, METADATA = "rabbit_stream_coordinator", "rabbitmq_metadata"
_CLUSTER_SIZE_MAX = 1 << 20
_DIGITS, _DIGITS_LATER = 8, 16
_WRITERS = "writers.snapshot"
_FILLERS_MAX = 1 << 16
_NODE_NAME = re.compile(rb"[A-Za-z0-9_-]+@[A-Za-z0-9_.-]+")
_NAMES, _META = "names.dets", "meta.dets"
ADVICE = {  # kinds of damage that no step repairs here, and what a person can do about them
    "bad_queue_config": "put a copy of the file in its place; no server serves the queue, but dump and export read it",
    "missing_entries": "put a copy of the missing log files in their place, or follow what was found",
    "bad_snapshot": "put a copy of the file in its place: it has what no entry of the log says",
}
_REFUSED = "dump and export read the messages that are left"
_NEUTRAL = {
    "max_length": "undefined", "max_bytes": "undefined", "delivery_limit": "undefined", "expires": "undefined",
    "msg_ttl": "undefined", "dead_letter_handler": "undefined", "overflow_strategy": "drop_head",
    "single_active_consumer_on": "false",
}  # fmt: skip


@dataclass
class _QuorumRepair:
    """The repair of one node's folder while it is planned; `last` is the last index of each queue's log.

    `renewed` has the folders that the server shall make again, `lost` the number of lost entries by folder.
    """

    node: QuorumNode
    staging: Staging
    plan: Plan
    lost: dict[str, int] = field(default_factory=dict)
    queues: list[QuorumQueue] = field(default_factory=list)
    new_logs: dict[str, list[LogEntry]] = field(default_factory=dict)
    renewed: set[bytes] = field(default_factory=set)
    last: dict[str, int] = field(default_factory=dict)
    term: dict[str, int] = field(default_factory=dict)

    def run(self) -> Plan:
        queues = self.queues = self.node.queues()
        self.node.logged()
        damaged = [(queue, *found) for queue in queues if (found := self._read_queue(queue)) is not None]
        for queue, messages, kinds in damaged:
            self._plan_queue(queue, messages, kinds)
        for name in self.node.wal_files():
            self._plan_wal(name)
        queues = [queue for queue in queues if fsencode(queue.uid) not in self.renewed]
        self._plan_configs(queues)
        self._plan_names(queues)
        self._plan_meta(queues)
        if self.plan.steps and self.node.disk.stat(f"{self.node.path}/{_WRITERS}") is not None:
            self._change("move_aside", _WRITERS, "rebuild_log")  # 4.3 starts no queue whose log ends before what this names
        self.plan.findings = list(dict.fromkeys(self.node.problems))
        for uid, count in self.lost.items():
            charge(self.plan.steps, f"{self.node.relative}/{uid}", Cost(log_entries_lost=count))
        return self.plan

    def _change(self, kind: str, file: str, reason: str, pieces: Any = None) -> None:
        name = f"{self.node.relative}/{file}"
        self.plan.add(kind, name, reason, partial(self.staging.stage, name, pieces))

    def _lose(self, queue: QuorumQueue, count: int) -> None:
        if count:
            self.lost[queue.uid] = self.lost.get(queue.uid, 0) + count

    def _leave(self, finding: Finding) -> None:
        self.plan.leave([finding], ADVICE.get(finding.kind, _REFUSED))

    # Logs

    def _read_queue(self, queue: QuorumQueue) -> tuple[list[tuple[QuorumContent, RaftEntry]], list[str]] | None:
        """Read a queue; return its messages, and the kinds of damage for which it needs a new log, None without any."""
        before = len(self.node.problems)
        entries, states = queue.entries(), queue.snapshots()[:1]
        self.last[queue.uid] = queue.last_index()
        self._lose(queue, self.node.check_end(queue))
        self.term[queue.uid] = max([*(entry.term for entry in entries.values()), *(state.term for state in states)], default=0)
        if not self.node.has_queues:
            damaged = [problem for problem in self.node.problems[before:] if problem.kind == "bad_snapshot"]
            if damaged:  # such a state has what no entry says
                for problem in dict.fromkeys(damaged):
                    self._leave(problem)
                self.last[queue.uid] = max(self.last[queue.uid], self.node.last_applied().get(queue.uid, 0))
                return None
            self._plan_log(queue)
            if self._is_empty(queue):
                self._renew(queue)
            return None
        messages = self._messages(queue)
        kinds = [problem.kind for problem in self.node.problems[before:] if problem.kind in _NEEDS_NEW_LOG]
        lost = {index for uid, index in self.node.lost if uid == queue.uid and index > self.last[queue.uid]}
        self._lose(queue, queue.lost_entries + len(lost))
        self.plan.messages_kept += len(messages)
        return (messages, kinds) if kinds else None

    def _plan_queue(self, queue: QuorumQueue, messages: list[tuple[QuorumContent, RaftEntry]], kinds: list[str]) -> None:
        refusal = self._refusal(queue)
        if refusal:
            self._leave(Finding(queue.relative, 0, kinds[0], "a queue that can be rebuilt", refusal))
        else:
            self._rebuild(queue, messages, ", ".join(dict.fromkeys(kinds)))

    def _plan_log(self, log: QuorumQueue) -> None:
        """Plan a log of `coordination` without gaps: a server needs all entries.

        An entry without effect takes the place of each lost one, and of the coordinator's later notes that the metadata store
        has a stream's writer.  If such a note is of an epoch whose election is lost, the next start reaches the same epoch and
        leaves a dead writer in the metadata store: the stream is unreachable.
        """
        entries, expected, lost = log.entries(), log.log_start, 0
        new = list[LogEntry]()
        stop = expected if entries.last is None else entries.last + 1
        missing = stop - expected - entries.count(expected, stop)
        if not missing:
            return
        own_node, nodes = self._cluster()
        if nodes - {own_node}:  # a log that differs from the others' would be served, and nothing would notice
            count = len(nodes | {own_node})
            found = f"{missing} are lost, of one of {count} nodes; remove this node from the cluster and add it again"
            self._leave(Finding(log.relative, 0, "missing_entries", "all entries", found))
            return
        for index in entries.since(expected):
            if index - expected > _FILLERS_MAX:
                found = f"{index - expected} entries are lost"
                self._leave(Finding(log.relative, 0, "missing_entries", f"at most {_FILLERS_MAX}", found))
                return
            entry = entries[index]
            without_effect = partial(new_leader, self.node.disk.now_ms(), 0)
            for number in range(expected, index):
                new.append(LogEntry(number, entry.term, without_effect if number else _first_entry))
            lost += index - expected
            is_kept = not lost or not is_writer_entry(entry)
            new.append(LogEntry(index, entry.term, partial(_bytes_of, entry) if is_kept else without_effect))
            expected = index + 1
        self._lose(log, lost)
        self._write_log(log.uid, new, [name for name in log.files() if "/" not in name], "missing_entries")

    def _renew(self, log: QuorumQueue) -> None:
        """Let the server make a log of `coordination` again: with an empty one it has no members, and no start ends.

        Where the metadata store is in use (`khepri_db`), its loss is that of all queues, and nothing is changed; nor is it
        where other nodes have the log.
        """
        above = self.node.path.rstrip("/").rsplit("/", 2)[0]
        flags = read_head(self.node.disk, f"{above}-feature_flags", _CLUSTER_SIZE_MAX)
        own_node, nodes = self._cluster()
        if self._log_name(log) == METADATA:
            found = "no entry; it may have had the declarations of all queues" if flags is None or _KHEPRI in flags else ""
        else:
            found = "no entry; remove this node from the cluster and add it again" if nodes - {own_node} else ""
        if found:
            self._leave(Finding(log.relative, 0, "missing_entries", "the log", found))
        else:
            self.renewed.add(fsencode(log.uid))
            if self.node.disk.stat(f"{self.node.path}/{log.uid}") is not None:
                self._change("move_aside", log.uid, "missing_entries")

    def _messages(self, queue: QuorumQueue) -> list[tuple[QuorumContent, RaftEntry]]:
        """Return the messages whose content can be read, in the order of delivery, dead-lettered ones last.

        A start drops messages over a limit: in a queue that drops its head, a new log with them would drop the first ones.
        """
        try:
            limits = queue.machine().settings
            has_space = not limits.drops_head or limits.max_length is limits.max_bytes is None
            rows = queue.ordered()
            ordered = [row.message for row in rows if has_space or not row.reason or row.state == DEAD_LETTERED]
            return [(message, entry) for message in ordered if (entry := queue.entry_of(message)) is not None]
        except (StoreCorrupt, UnsupportedFormat) as error:
            self.node.problems.append(finding_of(error, "bad_snapshot"))
            return []

    def _rebuild(self, queue: QuorumQueue, messages: list[tuple[QuorumContent, RaftEntry]], reason: str) -> None:
        """Replace segments and states by segments with a new log.

        It needs an entry with the settings: a server that creates a queue from its `config` takes the limits from there, but
        drops the first messages above them whatever `overflow_strategy` says (`rabbit_fifo_v1:convert_v0_to_v1`).
        """
        uid, term = queue.uid, self.term[queue.uid]
        leader = partial(new_leader, self.node.disk.now_ms(), self._version(queue))
        log = [LogEntry(0, 0, _first_entry), LogEntry(1, term, leader)]
        settings = queue.last_settings()
        if settings is not None:
            log.append(LogEntry(len(log), term, partial(_bytes_of, settings)))
        elif queue.machine_config:
            config = queue.machine().settings.put_into(queue.machine_config)
            log.append(LogEntry(len(log), term, partial(update_config, self.node.disk.now_ms(), config)))
        for message, entry in messages:
            log.append(LogEntry(len(log), term, partial(_enqueue, message, entry)))
        self.last[uid] = len(log) - 1
        self._write_log(uid, log, queue.files(), reason)

    def _write_log(self, uid: str, log: list[LogEntry], old: list[str], reason: str) -> None:
        """Write a log to new segments, and move the old files aside."""
        self.new_logs[uid] = log
        parts = [log[start : start + SEGMENT_ENTRIES] for start in range(0, len(log), SEGMENT_ENTRIES)]
        files = {f"{number:0{self._digits()}}.segment": part for number, part in enumerate(parts, 1)}
        for name in old:
            if name not in files:
                self._change("move_aside", f"{uid}/{name}", reason)
        for name, part in files.items():
            self._change("rebuild_log", f"{uid}/{name}", reason, partial(segment_pieces, part))

    def _digits(self) -> int:
        """Return how many digits the names of new segments have: a server of 4.3 reads no shorter ones once it renamed all."""
        marker = self.node.disk.stat(f"{self.node.path}/segment_name_upgrade_marker")
        names = [name.partition(".")[0] for name in self.node.wal_files()]
        return max([_DIGITS_LATER if marker is not None else _DIGITS, *map(len, names)])

    def _version(self, queue: QuorumQueue) -> int:
        """Return the version of the queue machine: that of the other queues if no entry of this one has it.

        Without one, the oldest version that has the queue's commands: the next leader raises it to the server's own.
        """
        if queue.has_version or queue.machine().version:
            return queue.machine().version
        found = queue.oldest_version()
        for other in self.queues:
            try:
                found = max(found, other.machine().version)
            except (StoreCorrupt, UnsupportedFormat):
                continue
        return found

    def _refusal(self, queue: QuorumQueue) -> str:
        """Return why a queue cannot get a new log."""
        if queue.members > 1:
            return f"one of {queue.members} members; delete this member and add it again"
        if not self._has_config(queue):
            return f"no config, and {self._config_for(queue)[2]}: nothing would read the new log"
        try:
            self._version(queue)
        except (StoreCorrupt, UnsupportedFormat) as error:
            return str(error)
        return ""

    def _plan_wal(self, name: str) -> None:
        """Write a log again without bad records and without those of queues that get a new log."""
        file = f"{self.node.relative}/{name}"
        found = [problem for problem in [*self.node.problems, *self.node.notes] if problem.file == file]
        kinds = [problem.kind for problem in found if problem.kind in _NEEDS_NEW_WAL]
        if any(problem.kind == "unsupported_format" for problem in found):
            return
        gone = any(uid in self.new_logs for uid, _record in self.node.wal_records(name))
        gaps = any(gap.file == file for queue in self.queues for gap, _indexes in queue.wal_gaps())
        if kinds or gone or gaps:
            self._change("rewrite_wal", name, ", ".join(dict.fromkeys(kinds)) or "rebuild_log", partial(self._wal, name))

    def _wal(self, name: str) -> Iterator[View]:
        view, file = self.node.map(name), f"{self.node.relative}/{name}"
        gaps = {gap.position: (queue, found) for queue in self.queues for gap, found in queue.wal_gaps() if gap.file == file}

        without_effect = partial(new_leader, self.node.disk.now_ms(), 0)  # for entries that a snapshot has replaced

        def records() -> Iterator[LogRecord]:
            for uid, record in self.node.wal_records(name):
                if uid in self.new_logs:
                    continue
                queue, missing = gaps.get(record.position, (self.queues[0], []))
                for index in missing:
                    entry = queue.entries().get(index)
                    data = without_effect() if entry is None else entry.view[entry.at : entry.at + entry.size]
                    yield LogRecord(uid, index, record.term if entry is None else entry.term, data)
                yield LogRecord(uid, record.index, record.term, view[record.at : record.stop], record.truncates)

        yield from wal_pieces(records())

    def _plan_configs(self, queues: list[QuorumQueue]) -> None:
        """Write a lost `config`, but none for a log of `coordination` without an entry: no start would end."""
        for queue in (queue for queue in queues if queue.has_unreadable_config):
            pieces = [format_config(queue.config)]
            self._change("write_config", f"{queue.uid}/config", "bad_queue_config", partial(list, pieces))
        for queue in (queue for queue in queues if queue.registered_name is None and not self._is_empty(queue)):
            config, expected, found = self._config_for(queue)
            if config is None:
                self._leave(Finding(f"{queue.relative}/config", 0, "bad_queue_config", expected, found))
            else:
                self._change("write_config", f"{queue.uid}/config", "bad_queue_config", partial(list, [format_config(config)]))

    def _has_config(self, queue: QuorumQueue) -> bool:
        """Return whether a queue has its `config` or gets one; without it nothing that names its messages is changed."""
        return queue.registered_name is not None or self._config_for(queue)[0] is not None

    def _config_for(self, queue: QuorumQueue) -> tuple[dict[Any, Any] | None, str, str]:
        """Return a `config` by the model of another queue's, with the name that the table has for the folder, or why not."""
        name = self._name_in_table(queue)
        if not self.node.has_queues:
            return self._coordinator_config(queue, name)
        model = next((queue for queue in self.queues if queue.registered_name is not None), None)
        if model is None or not isinstance(name, Atom):
            found = "no queue with a config" if model is None else "no row in names.dets"
            return None, "a queue with a config, and a name in names.dets", found
        return new_config(model, name, queue, {queue.vhost for queue in self.queues if queue.vhost}), "", ""

    def _name_in_table(self, queue: QuorumQueue) -> Term | None:
        return next((row[0] for row in self._rows(_NAMES) or [] if len(row) == 2 and row[1] == fsencode(queue.uid)), None)

    def _is_empty(self, log: QuorumQueue) -> bool:
        return not self.node.has_queues and not self.last[log.uid] and self._log_name(log) in (METADATA, COORDINATOR)

    def _log_name(self, log: QuorumQueue) -> Term | None:
        """Return the name of a log of `coordination`, which the table has too."""
        return log.registered_name or self._name_in_table(log)

    def _coordinator_config(self, queue: QuorumQueue, name: Term | None) -> tuple[dict[Any, Any] | None, str, str]:
        """Return the `config` of a log of `coordination`, or why it cannot be made: only it has the members of a cluster."""
        if name not in (COORDINATOR, METADATA):
            return None, f"{COORDINATOR} or {METADATA} in names.dets", str(name)
        own_node, nodes = self._cluster()
        if nodes != {own_node}:
            return None, f"{own_node} alone in cluster_nodes.config", ", ".join(sorted(nodes)) or "no name"
        if name == METADATA:
            return metadata_config(own_node, queue.uid), "", ""
        system = self._system_config(own_node)
        if system is None:
            found = "none: without the path of the server's folder in it no server of 3.9 to 3.12 serves streams"
            return None, "the config of a quorum queue", found
        return coordinator_config(own_node, queue.uid) | system, "", ""

    def _system_config(self, own_node: str) -> dict[Any, Any] | None:
        """Return the part of a `config` of 3.9 to 3.12 that a quorum queue's has as well, and nothing for a later server.

        It names the server's folder, so None if there is no quorum queue.  Later servers have the metadata store's log.
        """
        key, above = Atom("system_config"), self.node.path.rstrip("/").rsplit("/", 2)[0]
        if METADATA in [row[0] for row in self._rows(_NAMES) or []] + [log.registered_name for log in self.queues]:
            return {}
        folder = f"{above}/quorum/{own_node}"
        if self.node.disk.stat(folder) is None:
            return None
        with QuorumNode(folder, self.node.disk) as quorum:
            found = next((queue.config[key] for queue in quorum.queues() if key in queue.config), None)
        return None if found is None else {key: _of_coordination(found)}

    def _cluster(self) -> tuple[str, set[str]]:
        """Return the node's name, and the names of all nodes that `cluster_nodes.config` has."""
        above, _folder, own_node = self.node.path.rstrip("/").rsplit("/", 2)
        data = read_head(self.node.disk, f"{above}/cluster_nodes.config", _CLUSTER_SIZE_MAX) or b""
        return own_node, {match.decode() for match in _NODE_NAME.findall(data)}

    # Tables

    def _rows(self, name: str) -> list[tuple[Term, ...]] | None:
        """Return the rows of a table; None when it is missing or damaged."""
        data = read_if_there(self.node.disk, f"{self.node.path}/{name}")
        try:
            rows = None if data is None else read_rows(data, f"{self.node.relative}/{name}")
        except StoreCorrupt:
            return None
        return None if rows is None else [row for row in rows if isinstance(row, tuple)]

    def _plan_names(self, queues: list[QuorumQueue]) -> None:
        """Register the queues that the table lacks; a name that it has for the folder of another queue stays."""
        rows = self._rows(_NAMES)
        names = {fsencode(queue.uid): queue.registered_name for queue in queues}
        own = {name for name in names.values() if name is not None}
        known: dict[Term, tuple[Term, ...]] = {
            row[0]: row
            for row in rows or []
            if row[-1] not in self.renewed
            and len(row) == 2
            and isinstance(row[0], Atom)
            and (row[1] in names or row[0] not in own)
        }
        missing = {
            queue.registered_name: (queue.registered_name, fsencode(queue.uid))
            for queue in queues
            if queue.registered_name is not None and queue.registered_name not in known
        }
        if rows is None or missing or self.renewed:
            reason = "bad_names_table" if rows is None else "unregistered_queue" if missing else "missing_entries"
            self._change("write_names", _NAMES, reason, lambda: [write_dets([*known.values(), *missing.values()])])

    def _plan_meta(self, queues: list[QuorumQueue]) -> None:
        """Write the table if it is damaged, or if it has applied entries that a log no longer has."""
        rows = self._rows(_META)
        if rows is None:
            fresh = [(fsencode(queue.uid), self.term[queue.uid], UNDEFINED, self.last[queue.uid]) for queue in queues]
            self._change("write_meta", _META, "bad_meta_table", lambda: [write_dets(fresh)])
            return
        limits = {fsencode(queue.uid): self.last[queue.uid] for queue in queues if self._has_config(queue)}
        changed = [_limited(row, limits) for row in rows if row[0] not in self.renewed]
        if changed != rows:
            self._change(
                "write_meta", _META, "rebuild_log" if self.new_logs else "applied_ahead", lambda: [write_dets(changed)]
            )


def new_config(model: QuorumQueue, name: Atom, queue: QuorumQueue, vhosts: set[str]) -> dict[Any, Any]:
    """Return the model's `config` with another name, and without limits, except those that the queue's log has."""
    vhost, own_name = split_name(name, vhosts)
    resource = (Atom("resource"), vhost.encode(), Atom("queue"), own_name.encode())
    changes = {
        repr(model.registered_name): name,
        repr(fsencode(model.uid)): fsencode(queue.uid),
        repr(model.machine_config.get(Atom("queue_resource"))): resource,
        repr(model.config.get(Atom("friendly_name"))): f"queue '{own_name}' in vhost '{vhost}'",
    }
    found: dict[Any, Any] = _replaced(model.config, changes)
    settings = queue.last_settings()
    command: Any = settings.decode() if settings is not None else None
    limits = command[2][1] if command is not None and isinstance(command[2][1], dict) else {}
    machine = found[Atom("machine")]
    for key, neutral in _NEUTRAL.items():
        if Atom(key) in machine[2]:
            machine[2][Atom(key)] = limits.get(Atom(key), Atom(neutral))
    return found


def coordinator_config(node: str, uid: str) -> dict[Any, Any]:
    """Return the `config` of the streams' coordinator of a single node, as the server writes it."""
    atom = Atom(COORDINATOR)
    special = {
        "machine": (Atom("module"), atom, {}),
        "friendly_name": COORDINATOR,
        "initial_members": [(atom, Atom(node))],
        "metrics_key": atom,
        "ra_event_formatter": (atom, Atom("format_ra_event"), []),
        "tick_timeout": 30_000,
    }
    return _log_config(atom, node, uid, special)


_COORDINATION_NAMES = (
    (r"\Aquorum_queues\Z", "coordination"),
    (r"/quorum/(?=[^/]+\Z)", "/coordination/"),
    (r"\Ara_log_segment_writer\Z", "ra_segment_writer"),
    (r"\Ara_", "ra_coordination_"),
)


def _of_coordination(term: Any) -> Any:
    """Return the settings of quorum queues with the names and the folder of the coordination."""
    if isinstance(term, dict):
        return {key: _of_coordination(value) for key, value in term.items()}
    if isinstance(term, str):
        text = str(term)
        for pattern, name in _COORDINATION_NAMES:
            text = re.sub(pattern, name, text)
        return type(term)(text)
    return term


def metadata_config(node: str, uid: str) -> dict[Any, Any]:
    """Return the `config` of the metadata store of a single node, as the server writes it."""
    atom = Atom(METADATA)
    own = {Atom("member"): (atom, Atom(node)), Atom("store_id"): atom}
    special = {
        "machine": (Atom("module"), Atom("khepri_machine"), own),
        "friendly_name": "RabbitMQ metadata store",
        "initial_members": [],
        "tick_timeout": 1_000,
    }
    return _log_config(atom, node, uid, special)


def _log_config(name: Atom, node: str, uid: str, special: dict[str, Any]) -> dict[Any, Any]:
    log = fsencode(uid)
    found: dict[str, Any] = {
        "id": (name, Atom(node)),
        "cluster_name": name,
        "uid": log,
        "log_init_args": {Atom("uid"): log},
        "broadcast_time": 100,
        "install_snap_rpc_timeout": 120_000,
        "await_condition_timeout": 30_000,
    }
    return {Atom(key): value for key, value in (found | special).items()}


def split_name(name: str, vhosts: set[str]) -> tuple[str, str]:
    """Split a registered name into virtual host and queue; `_` joins them and may be in both, so known virtual hosts decide."""
    for vhost in sorted(vhosts, key=len, reverse=True):
        prefix = ("%2F" if vhost == "/" else vhost) + "_"
        if name.startswith(prefix):
            return vhost, name[len(prefix) :]
    vhost, _, queue = name.partition("_")
    return "/" if vhost == "%2F" else vhost, queue


def _replaced(term: Any, changes: dict[str, Any]) -> Any:
    if repr(term) in changes:
        return changes[repr(term)]
    if isinstance(term, dict):
        return {key: _replaced(value, changes) for key, value in term.items()}
    if isinstance(term, tuple | list):
        return type(term)(_replaced(part, changes) for part in term)
    return term


def _limited(row: tuple[Term, ...], limits: dict[bytes, int]) -> tuple[Term, ...]:
    """Lower the last applied index to the end of the log."""
    uid, applied = row[0], row[-1]
    if isinstance(uid, bytes) and isinstance(applied, int) and applied > limits.get(uid, applied):
        return (*row[:-1], limits[uid])
    return row


def _first_entry() -> bytes:
    return FIRST_ENTRY


def _bytes_of(entry: RaftEntry) -> bytes:
    return bytes(entry.view[entry.at : entry.at + entry.size])


def _enqueue(message: QuorumContent, entry: RaftEntry) -> bytes:
    return plain_enqueue(_bytes_of(entry), message.delivery_count, entry.file)


def plan_node(node: QuorumNode, staging: Staging) -> tuple[Plan, int]:
    """Return the plan, and the number of lost entries; its steps read the node's files, so it must stay open until they ran."""
    repair = _QuorumRepair(node, staging, Plan(node.path))
    return repair.run(), sum(repair.lost.values())
