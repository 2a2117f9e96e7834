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
- Blocks are allocated in steps, before an append writes into them (`MappedFile.allocate`).  On a full disk the append returns
  `PutStatus.CREATE_MAPPED_FILE_FAILED` with the `DiskFull` as `cause`, and nothing is half written.

Nothing here starts a thread, takes the store's lock or decides what damage means: `messagestore` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storebytes.lazy_names import lazy_names  # first of all: `storebytes` selects the build of the kernels

if TYPE_CHECKING:
    from ._append_cy import Appender
    from ._message_cy import (
        UNRESOLVED,
        Message,
        PutResult,
        StoredMessage,
        any_has,
        decode_properties,
        delete_property,
        encode_properties,
        without_fillers,
    )
    from ._offsets_cy import QueueOffsets, TopicQueues
    from ._packed_cy import first_other
    from ._scan_cy import Reader, find_record
    from ._tally_cy import Tally
    from .arrow_columns import read_columns
    from .checks import CHECK_ALL, CHECK_BODY, CHECK_POSITION, CHECK_RECORD, STOPS
    from .column_batch import ColumnBatch
    from .column_input import offsets_and_data
    from .columns import read_fixed
    from .commit_log import CommitLog, Stop, open_log
    from .growing import verify_growing_log, whole_end
    from .hosts import HOST_DEFAULT, encode_host
    from .java_numbers import check_number_properties, is_java_number
    from .log_paths import LogPaths
    from .mapped_file import MappedFile
    from .mapped_file_queue import MappedFileQueue
    from .message_id import DecodedId, decode_message_id, encode_message_id, encode_message_ids
    from .status import PutStatus
    from .unknown_version import is_unknown_version
    from .verify import LogReport, Protection, verify_log
else:
    __getattr__, __dir__ = lazy_names(
        globals(),
        {
            "._append_cy": ["Appender"],
            "._message_cy": [
                "Message",
                "PutResult",
                "StoredMessage",
                "UNRESOLVED",
                "decode_properties",
                "delete_property",
                "encode_properties",
                "any_has",
                "without_fillers",
            ],
            "._offsets_cy": ["QueueOffsets", "TopicQueues"],
            "._packed_cy": ["first_other"],
            "._scan_cy": ["Reader", "find_record"],
            "._tally_cy": ["Tally"],
            ".arrow_columns": ["read_columns"],
            ".checks": ["CHECK_ALL", "CHECK_BODY", "CHECK_POSITION", "CHECK_RECORD", "STOPS"],
            ".column_batch": ["ColumnBatch"],
            ".column_input": ["offsets_and_data"],
            ".columns": ["read_fixed"],
            ".commit_log": ["CommitLog", "Stop", "open_log"],
            ".growing": ["verify_growing_log", "whole_end"],
            ".hosts": ["HOST_DEFAULT", "encode_host"],
            ".java_numbers": ["check_number_properties", "is_java_number"],
            ".log_paths": ["LogPaths"],
            ".mapped_file": ["MappedFile"],
            ".mapped_file_queue": ["MappedFileQueue"],
            ".message_id": ["DecodedId", "decode_message_id", "encode_message_id", "encode_message_ids"],
            ".status": ["PutStatus"],
            ".unknown_version": ["is_unknown_version"],
            ".verify": ["LogReport", "Protection", "verify_log"],
        },
    )

__all__ = [
    "CHECK_ALL",
    "CHECK_BODY",
    "CHECK_POSITION",
    "CHECK_RECORD",
    "HOST_DEFAULT",
    "STOPS",
    "UNRESOLVED",
    "Appender",
    "ColumnBatch",
    "CommitLog",
    "DecodedId",
    "LogPaths",
    "LogReport",
    "MappedFile",
    "MappedFileQueue",
    "Message",
    "Protection",
    "PutResult",
    "PutStatus",
    "QueueOffsets",
    "Reader",
    "Stop",
    "StoredMessage",
    "Tally",
    "TopicQueues",
    "any_has",
    "check_number_properties",
    "decode_message_id",
    "decode_properties",
    "delete_property",
    "encode_host",
    "encode_message_id",
    "encode_message_ids",
    "encode_properties",
    "find_record",
    "first_other",
    "is_java_number",
    "is_unknown_version",
    "offsets_and_data",
    "open_log",
    "read_columns",
    "read_fixed",
    "verify_growing_log",
    "verify_log",
    "whole_end",
    "without_fillers",
]
