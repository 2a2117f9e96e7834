"""Find what this version cannot write safely in a virtual host's folder (docs/formats/rabbitmq-4.md#what-is-refused).

Every writing call checks this before it changes a byte.  A result is a `Problem` of kind `unsupported_format`; it is not
damage, so nothing is dropped, repaired or rewritten because of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing

from storageio import REAL_DISK, Disk, Kind, StoreCorrupt, UnsupportedFormat

from ..files import mapped, numbers_in, read_head
from ..format import layout
from ..format.container import START as CONTAINER_START
from ..format.content import decode_content
from ..format.content_cy import NAME
from ..format.index_v2 import check_head
from ..format.problems import UNSUPPORTED, Problem, to_problem, to_unsupported
from ..format.rdq import TERM_AT, scan_records
from ..format.terms import is_damaged_name
from ..stop_checksums import is_own_clean_stop
from .queue_folder import QueueFolder
from .store_folder import StoreFolder
from .table_check import read_tables
from .vhost_folder import VhostFolder

_KEPT = r"(\.new|\.bak|\.bak\.new)?\Z"  # left by `replace_file` and by a rewritten segment
_NAMES = {  # the known names by kind of folder
    "": re.compile(
        r"(\.vhost|\.config|recovery\.dets(\.TMP)?|msg_store_persistent|msg_store_transient|queues|brokerstore(\.aside-[0-9]+)?)"
        + _KEPT
    ),
    "store": re.compile(r"([0-9]+\.rd[qt]|clean\.dot|file_summary\.ets|msg_store_index\.ets)" + _KEPT),
    "queue": re.compile(r"(\.queue_name|[0-9]+\.(idx|qi|qs)|journal\.jif|sync_failed)" + _KEPT),  # the last is brokerstore's
}
_CONFIG_TERM = re.compile(rb"^\s*\{\s*([a-z][a-zA-Z0-9_@]*)\s*,[^{}]*\}\s*\.", re.MULTILINE)
_ENTRIES = "segment_entry_count"
_KNOWN_START = b"\x83h\x06d\x00" + bytes((len(NAME),)) + NAME.encode()
_FLAG = re.compile(r"'[^']*'|[a-z][a-zA-Z0-9_@.]*")
_FLAGS = """
    classic_mirrored_queue_version classic_queue_type_delivery_support delete_ra_cluster_mqtt_node direct_exchange_routing_v2
    drop_unroutable_metric empty_basic_get_metric feature_flags_v2 implicit_default_bindings listener_records_in_ets
    maintenance_mode_status quorum_queue rabbit_mqtt_qos0_queue restart_streams stream_queue
    stream_sac_coordinator_unblock_group stream_single_active_consumer stream_update_config_command tracking_records_in_ets
    user_limits virtual_host_metadata
"""
KNOWN_FLAGS = frozenset(_FLAGS.split())  # of 3.10 to 3.12: they do not change the format of classic queues


def refuse_unsupported(path: str, disk: Disk = REAL_DISK, *, for_repair: bool = False) -> None:
    """Raise `UnsupportedFormat` when writing to the folder could destroy data of an unknown format.

    `for_repair` allows the version-2 index of 3.10: `recover` repairs it, but a store open for writing does not support it.
    """
    with closing(VhostFolder(path, disk)) as folder:
        found = next(_findings(folder, for_repair=for_repair), None)
    if found is not None:
        raise to_unsupported(path, found)


def _findings(folder: VhostFolder, *, for_repair: bool) -> Iterator[Problem]:
    """Yield the reasons against writing, those that are quick to find first."""
    yield from unknown_parts(folder)
    yield from (problem for problem in folder.problems if problem.kind == UNSUPPORTED)
    yield from _later_release(folder)
    queues = folder.queue_folders()
    for queue in queues:
        if queue.version == 2 and not for_repair:
            found = f"queue {queue.queue!r} of index version 2"
            yield Problem(f"{queue.relative}/{layout.QUEUE_NAME_FILE}", 0, UNSUPPORTED, "index version 1 for writing", found)
        yield from _unknown_heads(queue)
    if not is_own_clean_stop(folder.disk, folder.path):  # else the last opening has checked every message
        for queue in queues:
            yield from _unknown_messages(queue)
        for store in folder.stores.values():
            for number in store.file_numbers():
                yield from _unknown_records(store, f"{number}.rdq")
            for number in numbers_in(store.disk, store.path, "rdt"):
                yield from _unknown_records(store, f"{number}.rdt")


def unknown_parts(folder: VhostFolder) -> Iterator[Problem]:
    """Yield each file and each term of `.config` that no known version writes."""
    disk, path = folder.disk, folder.path
    yield from _unknown_names(disk, path, "", _NAMES[""])
    for name in layout.STORE_FOLDERS:
        yield from _unknown_names(disk, path, f"{name}/", _NAMES["store"])
    yield from _unknown_names(disk, path, f"{layout.QUEUES_FOLDER}/", None)
    for queue in folder.queue_folders():
        yield from _unknown_names(disk, path, f"{queue.relative}/", _NAMES["queue"])
        version = queue.unknown_version
        if version is not None:
            yield Problem(f"{queue.relative}/{layout.QUEUE_NAME_FILE}", 0, UNSUPPORTED, "1, 2", f"index version {version}")
    text = re.sub(rb"%[^\n]*", b"", read_head(disk, f"{path}/{layout.CONFIG_NAME}") or b"")
    for name in (found.decode() for found in _CONFIG_TERM.findall(text)):
        if name != _ENTRIES and not is_damaged_name(name, _ENTRIES):
            yield Problem(layout.CONFIG_NAME, 0, UNSUPPORTED, _ENTRIES, f"term {name}")


def _unknown_names(disk: Disk, path: str, above: str, known: re.Pattern[str] | None) -> Iterator[Problem]:
    if disk.stat(f"{path}/{above}.") is None:
        return
    for entry in disk.list(f"{path}/{above}"):
        is_known = entry.kind is Kind.FOLDER if known is None else known.match(entry.name) is not None
        if not is_known and entry.name != "lost+found":
            yield Problem(f"{above}{entry.name}", 0, UNSUPPORTED, "the files of RabbitMQ 3.10 to 4.3", "unknown file")


def _later_release(folder: VhostFolder) -> Iterator[Problem]:
    """Yield traces of RabbitMQ 3.13 and later outside of the queues, and tables of an unknown kind."""
    for name, store in folder.stores.items():
        found: list[Problem] = []
        mark = read_tables(store, found).mark
        yield from (problem for problem in found if problem.kind == UNSUPPORTED)
        if mark is not None and not mark.index_module:
            yield Problem(f"{name}/{layout.CLEAN_NAME}", 0, UNSUPPORTED, "with index_module", "clean mark without index_module")
    file = flags_file(folder.disk, folder.path)
    if file is not None:
        unknown = [flag for flag in read_flags(folder.disk, file) if flag not in KNOWN_FLAGS]
        if unknown:
            yield Problem(
                os.path.relpath(file, folder.path), 0, UNSUPPORTED, "those of 3.10 to 3.12", f"feature flag {unknown[0]}"
            )


def flags_file(disk: Disk, vhost_path: str) -> str | None:
    """Return the file of feature flags beside the node's folder; None for a virtual host without a node's folder."""
    node, middle = os.path.abspath(vhost_path), ("msg_stores", "vhosts")
    for name in ("", *reversed(middle)):
        if name and os.path.basename(node) != name:
            return None
        node = os.path.dirname(node)
    file = f"{node}-feature_flags"
    return file if disk.stat(file) is not None else None


def read_flags(disk: Disk, file: str) -> list[str]:
    """Return the names in a file of feature flags, an Erlang list as text."""
    text = (read_head(disk, file) or b"").decode("utf-8", "replace")
    return [name.strip("'") for name in _FLAG.findall(text)]


def _unknown_heads(queue: QueueFolder) -> Iterator[Problem]:
    """Yield each `N.qi` and `N.qs` of another magic or version."""
    for ending, magic in (("qi", layout.V2_INDEX_MAGIC), ("qs", layout.V2_STORE_MAGIC)):
        for number in numbers_in(queue.disk, queue.path, ending):
            file = f"{number}.{ending}"
            head = read_head(queue.disk, f"{queue.path}/{file}", layout.V2_HEAD_SIZE) or b""
            try:
                if len(head) == layout.V2_HEAD_SIZE and any(head[: layout.V2_HEAD.size]):
                    check_head(head, magic, f"{queue.relative}/{file}")
            except UnsupportedFormat as error:
                yield to_problem(error, "")


def _unknown_messages(queue: QueueFolder) -> Iterator[Problem]:
    for entry in queue.entries([]):
        if entry.term is not None:
            yield from _unknown_message(entry.term, entry.file, entry.offset)


def _unknown_records(store: StoreFolder, name: str) -> Iterator[Problem]:
    with mapped(store.disk, f"{store.path}/{name}") as view:
        for record in scan_records(view, "").records:
            start, stop = record.offset + TERM_AT, record.offset + record.total_size - 1
            if view[start : start + len(_KNOWN_START)] != _KNOWN_START:
                yield from _unknown_message(bytes(view[start:stop]), f"{store.name}/{name}", record.offset)


def _unknown_message(term: bytes, file: str, offset: int) -> Iterator[Problem]:
    """Yield a problem for a whole term that is not a `basic_message`; a damaged term is not reported here."""
    if term.startswith(_KNOWN_START):
        return
    if term.startswith(CONTAINER_START):
        yield Problem(file, offset, UNSUPPORTED, "basic_message for writing", "message term mc")
        return
    try:
        decode_content(term)
    except UnsupportedFormat as error:
        yield Problem(file, offset, UNSUPPORTED, error.supported, f"{error.what} {error.found}")
    except StoreCorrupt:
        return
