"""What a virtual host's folder holds that this version does not know, or reads only.

Every writing call asks for it before it changes a byte.  A finding is a `Problem` of kind `unsupported_format`.  It is never
damage: nothing is dropped, repaired or rewritten for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from storageio import REAL_DISK, Disk, Kind, StoreCorrupt, UnsupportedFormat

from . import layout
from .clean_stop import is_own_stop
from .container import START as CONTAINER_START
from .content import decode_content
from .content_cy import NAME
from .folder import VhostFolder
from .paths import numbers_in, read_head
from .problems import UNSUPPORTED, Problem, of_unsupported, refusal
from .queue_folder import QueueFolder
from .records import TERM_AT, scan_records
from .store_folder import StoreFolder
from .table_check import read_tables
from .terms import is_damaged_name
from .version2 import check_head

_STORES = (layout.PERSISTENT_FOLDER, layout.TRANSIENT_FOLDER)
_KEPT = r"(\.new|\.bak|\.bak\.new)?\Z"  # what `replace_file` and a rewritten segment leave beside a file
_NAMES = {  # by folder, what lies there
    "": re.compile(
        r"(\.vhost|\.config|recovery\.dets(\.TMP)?|msg_store_persistent|msg_store_transient|queues|brokerstore(\.aside-[0-9]+)?)"
        + _KEPT
    ),
    "store": re.compile(r"([0-9]+\.rd[qt]|clean\.dot|file_summary\.ets|msg_store_index\.ets)" + _KEPT),
    "queue": re.compile(r"(\.queue_name|[0-9]+\.(idx|qi|qs)|journal\.jif|sync_failed)" + _KEPT),  # the last is our own mark
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
KNOWN_FLAGS = frozenset(_FLAGS.split())  # of 3.10 to 3.12, which leave the format of classic queues as it is


def refuse_unsupported(path: str, disk: Disk = REAL_DISK, *, for_repair: bool = False) -> None:
    """Raise `UnsupportedFormat` when writing to the folder could harm what is not understood.

    `for_repair` allows the version-2 index of 3.10, which `recover` mends; a store opened for writing does not have it.
    """
    folder = VhostFolder(path, disk)
    try:
        found = next(_findings(folder, for_repair=for_repair), None)
    finally:
        folder.close()
    if found is not None:
        raise refusal(path, found)


def _findings(folder: VhostFolder, *, for_repair: bool) -> Iterator[Problem]:
    """What speaks against writing, the quick looks first."""
    yield from unknown_parts(folder)
    yield from (problem for problem in folder.problems if problem.kind == UNSUPPORTED)
    yield from _later_release(folder)
    queues = folder.queue_folders()
    for queue in queues:
        if queue.version == 2 and not for_repair:
            found = f"queue {queue.queue!r} of index version 2"
            yield Problem(f"{queue.relative}/{layout.QUEUE_NAME_FILE}", 0, UNSUPPORTED, "index version 1 for writing", found)
        yield from _unknown_heads(queue)
    if not is_own_stop(folder.disk, folder.path):  # a clean stop of ours: the store was examined when it was opened
        for queue in queues:
            yield from _unknown_messages(queue)
        for store in folder.stores.values():
            for number in store.file_numbers():
                yield from _unknown_records(store, f"{number}.rdq")
            for number in numbers_in(store.disk, store.path, "rdt"):
                yield from _unknown_records(store, f"{number}.rdt")


def unknown_parts(folder: VhostFolder) -> Iterator[Problem]:
    """Yield each file, and each term of `.config`, that no known version writes."""
    disk, path = folder.disk, folder.path
    yield from _unknown_names(disk, path, "", _NAMES[""])
    for name in _STORES:
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
    """What only RabbitMQ 3.13 and later leave, whatever the queues hold, and tables of an unknown kind."""
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
    """Return the file of feature flags beside the node's folder; None where the virtual host lies alone."""
    node, middle = os.path.abspath(vhost_path), ("msg_stores", "vhosts")
    for name in ("", *reversed(middle)):
        if name and os.path.basename(node) != name:
            return None
        node = os.path.dirname(node)
    file = f"{node}-feature_flags"
    return file if disk.stat(file) is not None else None


def read_flags(disk: Disk, file: str) -> list[str]:
    """Return the names in a file of feature flags, which is an Erlang list as text."""
    text = (read_head(disk, file) or b"").decode("utf-8", "replace")
    return [name.strip("'") for name in _FLAG.findall(text)]


def _unknown_heads(queue: QueueFolder) -> Iterator[Problem]:
    """`N.qi` and `N.qs` of another magic or version."""
    for ending, magic in (("qi", layout.V2_INDEX_MAGIC), ("qs", layout.V2_STORE_MAGIC)):
        for number in numbers_in(queue.disk, queue.path, ending):
            file = f"{number}.{ending}"
            head = read_head(queue.disk, f"{queue.path}/{file}", layout.V2_HEAD_SIZE) or b""
            try:
                if len(head) == layout.V2_HEAD_SIZE and any(head[: layout.V2_HEAD.size]):
                    check_head(head, magic, f"{queue.relative}/{file}")
            except UnsupportedFormat as error:
                yield of_unsupported(error)


def _unknown_messages(queue: QueueFolder) -> Iterator[Problem]:
    for entry in queue.entries([]):
        if entry.term is not None:
            yield from _unknown_message(entry.term, entry.file, entry.offset)


def _unknown_records(store: StoreFolder, name: str) -> Iterator[Problem]:
    def look(view: memoryview) -> list[Problem]:
        found: list[Problem] = []
        for record in scan_records(view, "").records:
            start, stop = record.offset + TERM_AT, record.offset + record.total_size - 1
            if view[start : start + len(_KNOWN_START)] != _KNOWN_START:
                found += _unknown_message(bytes(view[start:stop]), f"{store.name}/{name}", record.offset)
        return found

    yield from store.mapped(name, look)


def _unknown_message(term: bytes, file: str, offset: int) -> Iterator[Problem]:
    """A whole term that is not the one message term that is written here; damage is for others to name."""
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
