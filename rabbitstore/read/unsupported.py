"""Find what this version cannot write safely in a virtual host's folder (docs/formats/rabbitmq-4.md#what-is-refused).

Every writing call checks this before it changes a byte.  A result is a `Finding` of kind `unsupported_format`; it is not
damage, so nothing is dropped, repaired or rewritten because of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing

from storageio import REAL_DISK, Disk, Kind, StoreCorrupt, UnsupportedFormat, read_head
from storebytes.finding import UNSUPPORTED, Finding, unsupported_error

from ..files import SMALL_SIZE_MAX, mapped, numbers_in
from ..format import layout
from ..format.container import START as CONTAINER_START
from ..format.content import decode_content
from ..format.content_cy import NAME
from ..format.index_versions import VERSIONS
from ..format.rdq import TERM_AT, scan_records
from ..format.terms import is_damaged_name
from ..stop_checksums import is_own_clean_stop
from .intact_segment_cy import IntactSegment
from .queue_folder import READERS, QueueFolder
from .store_folder import StoreFolder
from .table_check import read_tables
from .vhost_folder import VhostFolder

_KEPT = r"(\.new|\.bak|\.bak\.new)?\Z"  # left by `replace_file` and by a rewritten segment
_ENDINGS = "|".join(ending for one in VERSIONS.values() for ending in one.endings)
_NAMES = {  # the known names by kind of folder
    "": re.compile(
        r"(\.vhost|\.config|recovery\.dets(\.TMP)?|msg_store_persistent|msg_store_transient|queues|brokerstore(\.aside-[0-9]+)?)"
        + _KEPT
    ),
    "store": re.compile(r"([0-9]+\.rd[qt]|clean\.dot|file_summary\.ets|msg_store_index\.ets)" + _KEPT),
    "queue": re.compile(rf"(\.queue_name|[0-9]+\.({_ENDINGS})|journal\.jif|sync_failed)" + _KEPT),  # the last is brokerstore's
}
_CONFIG_TERM = re.compile(rb"^\s*\{\s*([a-z][a-zA-Z0-9_@]*)\s*,[^{}]*\}\s*\.", re.MULTILINE)
_ENTRIES = "segment_entry_count"
_KNOWN_START = b"\x83h\x06d\x00" + bytes((len(NAME),)) + NAME.encode()
_CONTAINER_OF_0_9_1 = CONTAINER_START + b"w\x08mc_amqplh\x06w\x07content"
_FLAG = re.compile(r"'[^']*'|[a-z][a-zA-Z0-9_@.]*")
_FLAGS = """
    classic_mirrored_queue_version classic_queue_type_delivery_support delete_ra_cluster_mqtt_node direct_exchange_routing_v2
    drop_unroutable_metric empty_basic_get_metric feature_flags_v2 implicit_default_bindings listener_records_in_ets
    maintenance_mode_status quorum_queue rabbit_mqtt_qos0_queue restart_streams stream_queue
    stream_sac_coordinator_unblock_group stream_single_active_consumer stream_update_config_command tracking_records_in_ets
    user_limits virtual_host_metadata
"""
KNOWN_FLAGS = frozenset(_FLAGS.split())  # of 3.10 to 3.12: they do not change the format of classic queues
_LATER_FLAGS = """
    detailed_queues_endpoint khepri_db message_containers message_containers_deaths_v2 quorum_queue_non_voters
    rabbit_exchange_type_local_random rabbit_mqtt_qos0_queue mqtt_v5 rabbitmq_4.0.0 rabbitmq_4.1.0 rabbitmq_4.2.0 rabbitmq_4.3.0
    stream_filtering tie_binding_to_dest_with_keep_while_cond topic_binding_projection_v4 topic_binding_projection_v5
    track_qq_members_uids
"""
LATER_FLAGS = KNOWN_FLAGS | frozenset(_LATER_FLAGS.split())  # of 3.13 to 4.3
_CONTAINERS_FLAG = "message_containers"


def refuse_unsupported(path: str, disk: Disk = REAL_DISK, *, for_repair: bool = False) -> None:
    """Raise `UnsupportedFormat` when writing to the folder could destroy data of an unknown format.

    `for_repair` allows the version-2 index of 3.10: `recover` repairs it, but a store open for writing does not support it.
    """
    with closing(VhostFolder(path, disk)) as folder:
        found = next(_findings(folder, for_repair=for_repair), None)
    if found is not None:
        raise unsupported_error(path, found)


def _findings(folder: VhostFolder, *, for_repair: bool) -> Iterator[Finding]:
    """Yield the reasons against writing, those that are quick to find first."""
    yield from unknown_parts(folder)
    yield from (problem for problem in folder.problems if problem.kind == UNSUPPORTED)
    queues = folder.queue_folders()
    is_later = _is_later(folder, queues)
    yield from _other_release(folder, is_later)
    for queue in queues:
        if queue.format.is_later and not is_later and not for_repair:
            found = f"queue {queue.queue!r} of index version {queue.version}"
            yield Finding(f"{queue.relative}/{layout.QUEUE_NAME_FILE}", 0, UNSUPPORTED, "index version 1 for writing", found)
        yield from (problem for reader in READERS.values() for problem in reader(queue).unknown_heads())
    if not is_own_clean_stop(folder.disk, folder.path):  # else the last opening has checked every message
        for queue in queues:
            yield from _unknown_messages(queue, is_later)
        for store in folder.stores.values():
            for number in store.file_numbers():
                yield from _unknown_records(store, f"{number}.rdq", is_later)
            for number in numbers_in(store.disk, store.path, "rdt"):
                yield from _unknown_records(store, f"{number}.rdt", is_later)


def _is_later(folder: VhostFolder, queues: list[QueueFolder]) -> bool:
    """Return whether RabbitMQ 4 or brokerstore wrote the folder: every index has version 2, and something shows who wrote it.

    3.10 to 3.12 had version 2 as an option and cannot read message containers.  A folder without messages has no version yet.
    """
    if any(not queue.format.is_later and queue.has_index for queue in queues):
        return False
    file = flags_file(folder.disk, folder.path)
    flags = read_flags(folder.disk, file) if file is not None else None
    if flags is not None:
        return _CONTAINERS_FLAG in flags
    mark = read_tables(folder.stores[layout.PERSISTENT_FOLDER], []).mark
    if mark is not None:
        return not mark.index_module
    sidecar = f"{folder.path}/{layout.SIDECAR_FOLDER}/{layout.DECLARATIONS_NAME}"
    if not any(queue.has_index for queue in queues) or folder.disk.stat(sidecar) is not None:
        return True
    return any(map(_has_container, queues)) or any(map(_starts_with_container, folder.stores.values()))


def _has_container(queue: QueueFolder) -> bool:
    return any((entry.term or b"").startswith(CONTAINER_START) for entry in queue.entries([]))


def _starts_with_container(store: StoreFolder) -> bool:
    for number in store.file_numbers():
        with mapped(store.disk, f"{store.path}/{number}.rdq") as view:
            starts = (bytes(view[one.offset + TERM_AT :][: len(CONTAINER_START)]) for one in scan_records(view, "").records)
            if CONTAINER_START in starts:
                return True
    return False


def unknown_parts(folder: VhostFolder) -> Iterator[Finding]:
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
            yield Finding(f"{queue.relative}/{layout.QUEUE_NAME_FILE}", 0, UNSUPPORTED, "1, 2", f"index version {version}")
    text = re.sub(rb"%[^\n]*", b"", read_head(disk, f"{path}/{layout.CONFIG_NAME}", SMALL_SIZE_MAX) or b"")
    for name in (found.decode() for found in _CONFIG_TERM.findall(text)):
        if name != _ENTRIES and not is_damaged_name(name, _ENTRIES):
            yield Finding(layout.CONFIG_NAME, 0, UNSUPPORTED, _ENTRIES, f"term {name}")


def _unknown_names(disk: Disk, path: str, above: str, known: re.Pattern[str] | None) -> Iterator[Finding]:
    if disk.stat(f"{path}/{above}.") is None:
        return
    for entry in disk.list(f"{path}/{above}"):
        is_known = entry.kind is Kind.FOLDER if known is None else known.match(entry.name) is not None
        if not is_known and entry.name != "lost+found":
            yield Finding(f"{above}{entry.name}", 0, UNSUPPORTED, "the files of RabbitMQ 3.10 to 4.3", "unknown file")


def _other_release(folder: VhostFolder, is_later: bool) -> Iterator[Finding]:
    """Yield traces of another release outside of the queues, and tables of an unknown kind."""
    for name, store in folder.stores.items():
        found: list[Finding] = []
        mark = read_tables(store, found).mark
        yield from (problem for problem in found if problem.kind == UNSUPPORTED)
        if mark is not None and not mark.index_module and not is_later:
            yield Finding(f"{name}/{layout.CLEAN_NAME}", 0, UNSUPPORTED, "with index_module", "clean mark without index_module")
    file = flags_file(folder.disk, folder.path)
    if file is not None:
        known, releases = (LATER_FLAGS, "3.13 to 4.3") if is_later else (KNOWN_FLAGS, "3.10 to 3.12")
        unknown = [flag for flag in read_flags(folder.disk, file) if flag not in known]
        if unknown:
            where = os.path.relpath(file, folder.path)
            yield Finding(where, 0, UNSUPPORTED, f"those of {releases}", f"feature flag {unknown[0]}")


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
    text = (read_head(disk, file, SMALL_SIZE_MAX) or b"").decode("utf-8", "replace")
    return [name.strip("'") for name in _FLAG.findall(text)]


def _unknown_messages(queue: QueueFolder, is_later: bool) -> Iterator[Finding]:
    for part in queue.counted([]):
        if isinstance(part, IntactSegment) and (is_later or not part.containers):
            continue
        for entry in part.entries() if isinstance(part, IntactSegment) else part:
            if entry.term is not None:
                yield from _unknown_message(entry.term, entry.file, entry.offset, is_later)


def _unknown_records(store: StoreFolder, name: str, is_later: bool) -> Iterator[Finding]:
    with mapped(store.disk, f"{store.path}/{name}") as view:
        for record in scan_records(view, "").records:
            start, stop = record.offset + TERM_AT, record.offset + record.total_size - 1
            if view[start : start + len(_KNOWN_START)] != _KNOWN_START:
                yield from _unknown_message(bytes(view[start:stop]), f"{store.name}/{name}", record.offset, is_later)


def _unknown_message(term: bytes, file: str, offset: int, is_later: bool) -> Iterator[Finding]:
    """Yield a problem for a whole term of another kind than the release's; a damaged term is not reported here."""
    if term.startswith(_KNOWN_START) or (is_later and term.startswith(_CONTAINER_OF_0_9_1)):
        return
    if term.startswith(CONTAINER_START) and not is_later:
        yield Finding(file, offset, UNSUPPORTED, "basic_message for writing", "message term mc")
        return
    try:
        decode_content(term)
    except UnsupportedFormat as error:
        yield Finding(file, offset, UNSUPPORTED, error.supported, f"{error.what} {error.found}")
    except StoreCorrupt:
        return
