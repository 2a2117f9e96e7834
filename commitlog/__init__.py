"""The commit log of RocketMQ: append records to mapped files and read them by offset.

Files: `<store>/commitlog/00000000000000000000`, `.../00000000001073741824`, ...: each 1 GiB (or another size, the same for
all), named by the physical offset of its first byte in twenty digits.  Records lie back to back; a file without room for the
next one ends in a blank record over its rest.  After the last record there are zeros.  Layout: `layout.py`.

Order of calls for a writer: `CommitLog(paths, writable=True)`, `find_end()`, `attach(end)`, then `appender.append(...)`,
`append_many`, `append_batch`, `append_columns`; `flush()`; `close()`.  A reader: `open_log(folder)`, then `message_at`,
`messages`, `select`, `walk_file`; `read_fixed` and `read_columns` for NumPy and Arrow columns.

- *written*: the append returned.  Every process that maps the file sees the whole record or nothing; it survives the death of
  the process, but not of the machine.
- *flushed*: `flush()` returned a greater offset.  It survives the death of the machine.
- A full disk is detected when a file is made (all its blocks are allocated), never inside an append: nothing is half written.

Nothing here starts a thread, takes the store's lock or decides what damage means: `messagestore` does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import storebytes  # noqa: F401  (first: it selects which build of the kernels is imported)

if TYPE_CHECKING:
    from ._append_cy import Appender
    from ._message_cy import Message, PutResult, StoredMessage, decode_properties, delete_property, encode_properties
    from ._offsets_cy import QueueOffsets, TopicQueues
    from .arrow_columns import read_columns
    from .checks import CHECK_ALL, CHECK_BODY, CHECK_PLACE, CHECK_RECORD, STOPS
    from .column_input import offsets_and_data
    from .columns import read_fixed
    from .commit_log import CommitLog, Stop, open_log
    from .hosts import HOST_DEFAULT
    from .log_paths import LogPaths
    from .mapped_file import MappedFile
    from .mapped_file_queue import MappedFileQueue
    from .message_id import decode_message_id, encode_message_id
    from .status import AppendStatus, PutStatus

_EXPORTS = {  # each is imported when it is first used
    "Appender": "._append_cy",
    **dict.fromkeys(
        ("Message", "PutResult", "StoredMessage", "decode_properties", "delete_property", "encode_properties"), "._message_cy"
    ),
    **dict.fromkeys(("QueueOffsets", "TopicQueues"), "._offsets_cy"),
    "read_columns": ".arrow_columns",
    **dict.fromkeys(("CHECK_ALL", "CHECK_BODY", "CHECK_PLACE", "CHECK_RECORD", "STOPS"), ".checks"),
    "offsets_and_data": ".column_input",
    "read_fixed": ".columns",
    **dict.fromkeys(("CommitLog", "Stop", "open_log"), ".commit_log"),
    "HOST_DEFAULT": ".hosts",
    "LogPaths": ".log_paths",
    "MappedFile": ".mapped_file",
    "MappedFileQueue": ".mapped_file_queue",
    **dict.fromkeys(("decode_message_id", "encode_message_id"), ".message_id"),
    **dict.fromkeys(("AppendStatus", "PutStatus"), ".status"),
}

__all__ = [
    "CHECK_ALL",
    "CHECK_BODY",
    "CHECK_PLACE",
    "CHECK_RECORD",
    "HOST_DEFAULT",
    "STOPS",
    "AppendStatus",
    "Appender",
    "CommitLog",
    "LogPaths",
    "MappedFile",
    "MappedFileQueue",
    "Message",
    "PutResult",
    "PutStatus",
    "QueueOffsets",
    "Stop",
    "StoredMessage",
    "TopicQueues",
    "decode_message_id",
    "decode_properties",
    "delete_property",
    "encode_message_id",
    "encode_properties",
    "offsets_and_data",
    "open_log",
    "read_columns",
    "read_fixed",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_EXPORTS[name], __name__), name)
    return found
