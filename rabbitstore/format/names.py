"""Names of virtual hosts, queues and files (docs/formats/rabbitmq-folder.md#names)."""

from __future__ import annotations

import re

from .index_versions import VERSIONS
from .layout import SEGMENT_ENTRIES_MAX, SEGMENT_ENTRIES_OLD
from .md5 import md5

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ENTRIES = re.compile(rb"^\s*\{\s*segment_entry_count\s*,\s*(\d{1,9})\s*\}\s*\.", re.MULTILINE)
_NUMBERED = re.compile(r"(0|[1-9][0-9]{0,18})\.([a-z]{2,3})\Z")
HASHED = re.compile(r"[0-9A-Z]{20,25}")  # names of folders, which nearly always have 24 or 25 digits
_INDEX_LINE = re.compile(rb"INDEX: v([0-9]{1,4})\n\Z")
CONFIG_TEXT = b"%%%% This file is auto-generated! Edit at your own risk!\n{segment_entry_count, %d}."


def base36(number: int) -> str:
    """Return the number in base 36: upper-case digits, no padding."""
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"


def _hashed(*parts: bytes) -> str:
    return base36(int.from_bytes(md5(b"".join(parts)), "big"))


def vhost_folder_name(vhost: str) -> str:
    """Return the name of a virtual host's folder below `msg_stores/vhosts`; 24 or 25 characters."""
    return _hashed(vhost.encode())


def queue_folder_name(vhost: str, queue: bytes) -> str:
    """Return the name of a queue's folder below `queues`; `queue` is a name that `part_name` returned."""
    return _hashed(b"queue", vhost.encode(), queue)


def part_name(queue: bytes, priority: int | None) -> bytes:
    """Return the name of a queue, or with NUL and priority (0..255) that of one part of a priority queue."""
    return queue if priority is None else queue + bytes((0, priority))


def split_part_name(name: bytes) -> tuple[str, int | None]:
    """Return the plain name and the priority, None for an ordinary queue."""
    if len(name) >= 2 and name[-2] == 0:
        return name[:-2].decode("utf-8", "replace"), name[-1]
    return name.decode("utf-8", "replace"), None


def queue_name_text(vhost: str, queue: bytes, version: int = 1) -> bytes:
    """Return the text of `.queue_name` for a queue of this index version."""
    return b"VHOST: " + vhost.encode() + b"\nQUEUE: " + queue + VERSIONS[version].name_line


def read_queue_name(text: bytes, folder: str = "") -> tuple[str, bytes] | None:
    """Return (vhost, queue name) from `.queue_name` of any version; None for any other text.

    A queue's name may end like the line of the index version: the longer name counts when `folder` is named after it.
    """
    longer = _read_name(text.removesuffix(b"\n"))
    if longer is not None and folder and queue_folder_name(*longer) == folder:
        return longer
    return _read_name(_INDEX_LINE.sub(b"", text).removesuffix(b"\n"))


def _read_name(text: bytes) -> tuple[str, bytes] | None:
    if not text.startswith(b"VHOST: "):
        return None
    vhost, found, queue = text.removeprefix(b"VHOST: ").partition(b"\nQUEUE: ")
    return (vhost.decode("utf-8", "replace"), queue) if found else None


def index_version(text: bytes | None) -> int:
    """Return the version that the last line of `.queue_name` names; 1 without such a line."""
    found = _INDEX_LINE.search(text or b"")
    return int(found[1]) if found else 1


def read_segment_entries(config: bytes | None) -> int | None:
    """Return the number of entries in a segment from `.config`; None when it has no usable one."""
    if config is None:
        return SEGMENT_ENTRIES_OLD
    found = _ENTRIES.search(config)
    entries = int(found[1]) if found else 0
    return entries if 1 <= entries <= SEGMENT_ENTRIES_MAX else None


def numbered(name: str, ending: str) -> int | None:
    """Return N of `N.ending`; None for any other name."""
    found = _NUMBERED.match(name)
    return int(found[1]) if found and found[2] == ending else None
