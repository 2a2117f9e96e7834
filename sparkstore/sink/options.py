"""Parse the options of writing.

    path                      the store's folder; a new store is created if there is none
    topic                     topic of every message instead of the column `topic`, as in Spark's Kafka sink
    queues                    number of queues of a new topic
    sinkId                    identifies the writer: letters, digits, `.`, `_`, `-`, at most 64.  Default: the query id of a
                              stream, which its checkpoint keeps, or a random id of a batch job.  Set it for a job that may
                              run again: it does not write the same rows twice.  The first query that uses an id owns
                              it (`owner.py`)
    batchId                   batch number of a batch job (default 0), as in `foreachBatch`
    trace                     true: errors come with Python's stack (default false: one line)
    newStore                  true: an existing store is an error; false (default): it is appended to
    maxMessageSize            maximum size of a body (default 4 MiB)
    mappedFileSizeCommitLog, mappedFileSizeConsumeQueue, maxHashSlotNum, maxIndexNum
                              sizes of a new store's files (default: RocketMQ's)

Sizes may end in k, m or g.  An unknown option is an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from messagestore import StoreConfig
from messagestore.write.admission import topic_problem
from storageio.settings import I32_MAX

from ..errors import BadOption
from ..options import GivenOptions, size_of

OWN = ("path", "topic", "queues", "sinkId", "batchId", "newStore", "trace")
SIZES = {
    "maxMessageSize": "max_message_size",
    "mappedFileSizeCommitLog": "mapped_file_size_commit_log",
    "mappedFileSizeConsumeQueue": "mapped_file_size_consume_queue",
    "maxHashSlotNum": "max_hash_slot_num",
    "maxIndexNum": "max_index_num",
}
SPARKS = ("checkpointLocation", "queryName", "outputMode")  # Spark's own options, which a stream's writer passes on
SINK_ID_SIZE_MAX = 64
# A commit deletes no log files, however long it takes; the retention of the store's owner decides that.
KEEPS_ALL: dict[str, Any] = {
    "file_reserved_time_hours": 1_000_000, "clean_file_forcibly_enable": False, "clean_resource_interval_ms": (1 << 31) - 1,
}  # fmt: skip
QUEUES_MAX = 1 << 20
_SINK_ID = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{SINK_ID_SIZE_MAX - 1}}}")


@dataclass(frozen=True)
class SinkOptions:
    """The parsed options of a sink."""

    path: str
    topic: str | None = None
    queues: int | None = None
    sink_id: str | None = None
    batch_id: int = 0
    checkpoint: str | None = None
    is_new_store: bool = False
    shows_trace: bool = False
    config: StoreConfig = field(default_factory=StoreConfig)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse options.  Raises `BadOption` for an unknown one or an invalid value."""
    read = GivenOptions({name.lower(): value for name, value in options.items() if value is not None})
    given = read.options
    known = (*OWN, *SIZES, *SPARKS)
    unknown = sorted(set(given) - {name.lower() for name in known})
    if unknown:
        raise BadOption(f"unknown option {unknown[0]!r} of the sink; the options are {', '.join((*OWN, *SIZES))}")
    if not given.get("path"):
        raise BadOption("no path: use save(path), start(path) or the option path")
    sizes: dict[str, Any] = {field: _size(given, name) for name, field in SIZES.items() if name.lower() in given}
    queues = read.number("queues")
    if queues is not None and not 1 <= queues <= QUEUES_MAX:
        raise BadOption(f"option queues: expected 1 to {QUEUES_MAX}, found {queues}")
    sink_id = given.get("sinkid")
    return SinkOptions(
        path=os.path.abspath(local_path(given["path"])),  # an executor has another working directory
        topic=_topic(given),
        queues=queues,
        sink_id=None if sink_id is None else check_sink_id(sink_id),
        batch_id=read.number("batchId") or 0,
        checkpoint=given.get("checkpointlocation"),
        is_new_store=bool(read.flag("newStore")),
        shows_trace=bool(read.flag("trace")),
        config=StoreConfig(**sizes, **KEEPS_ALL),
    )


def check_sink_id(text: str) -> str:
    """Return the id if it is valid as a folder name and part of a key."""
    if not _SINK_ID.fullmatch(text):
        expected = f"letters, digits, '.', '_', '-', at most {SINK_ID_SIZE_MAX}"
        raise BadOption(f"option sinkId: expected {expected}, found {text!r}")
    return text


def local_path(path: str) -> str:
    """Strip `file:` from a path.  Raises `BadOption` for other schemes, since a store is written through the file system."""
    scheme, colon, rest = path.partition(":")
    if not colon or "/" in scheme or len(scheme) == 1:
        return path
    if scheme.lower() != "file":
        raise BadOption(f"path {path!r}: a store is written to a mounted folder, not through {scheme}:")
    return "/" + rest.lstrip("/")


def _topic(given: Mapping[str, str]) -> str | None:
    topic = given.get("topic")
    problem = None if topic is None else topic_problem(topic)
    if problem:
        raise BadOption(f"option topic: {problem}")
    return topic


def _size(given: Mapping[str, str], name: str) -> int:
    text = given[name.lower()]
    try:
        found = size_of(text)
    except ValueError:
        found = 0
    if not 0 < found <= I32_MAX:
        raise BadOption(f"option {name}: expected 1 to {I32_MAX} bytes (k, m or g may follow), found {text!r}")
    return found
