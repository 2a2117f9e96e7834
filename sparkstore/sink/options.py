"""The options of writing, from Spark's strings.

    path                      the store's folder; a store is made there if there is none
    topic                     of every message, instead of a column `topic` (as Spark's Kafka sink has it)
    queues                    number of queues of a topic that is new
    sinkId                    who writes: letters, digits, `.`, `_`, `-`, at most 64.  A stream's is its query id, which the
                              checkpoint keeps; a batch job's is made up.  Give one to a job that may have to run again:
                              what its first run wrote is not written twice.  A stream's belongs to the query that wrote
                              under it first (`owner.py`)
    batchId                   of a batch job: which of its batches (default 0), as `foreachBatch` knows it
    newStore                  true: a store that is there already is an error (default false: it is appended to)
    maxMessageSize            most bytes of a body (default 4 MiB)
    mappedFileSizeCommitLog, mappedFileSizeConsumeQueue, maxHashSlotNum, maxIndexNum
                              sizes of a new store's files; RocketMQ's defaults where they are not said

Sizes may end in k, m or g.  An option that nobody knows is an error, not silence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from messagestore import StoreConfig
from messagestore.broker.services.admission import topic_problem
from storageio.settings import I32_MAX

from ..errors import BadOption
from ..options import size_of

OWN = ("path", "topic", "queues", "sinkId", "batchId", "newStore")
SIZES = {
    "maxMessageSize": "max_message_size",
    "mappedFileSizeCommitLog": "mapped_file_size_commit_log",
    "mappedFileSizeConsumeQueue": "mapped_file_size_consume_queue",
    "maxHashSlotNum": "max_hash_slot_num",
    "maxIndexNum": "max_index_num",
}
SPARKS = ("checkpointLocation", "queryName", "outputMode")  # what a stream's writer hands on of Spark's own
SINK_ID_SIZE_MAX = 64
# A commit deletes nothing, however long it takes: what is kept how long is for whoever else opens the store to say.
KEEPS_ALL: dict[str, Any] = {"file_reserved_time_hours": 1_000_000, "clean_file_forcibly_enable": False}
NUMBER_DIGITS_MAX = 18
QUEUES_MAX = 1 << 20
_SINK_ID = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{SINK_ID_SIZE_MAX - 1}}}")


@dataclass(frozen=True)
class SinkOptions:
    """What was asked for, parsed."""

    path: str
    topic: str | None = None
    queues: int | None = None
    sink_id: str | None = None
    batch_id: int = 0
    checkpoint: str | None = None
    is_new_store: bool = False
    config: StoreConfig = field(default_factory=StoreConfig)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Raises `BadOption` for one that is unknown or has a value that it cannot have."""
    given = {name.lower(): value for name, value in options.items() if value is not None}
    known = (*OWN, *SIZES, *SPARKS)
    unknown = sorted(set(given) - {name.lower() for name in known})
    if unknown:
        raise BadOption(f"no option {unknown[0]!r} of the sink; there are {', '.join((*OWN, *SIZES))}")
    if not given.get("path"):
        raise BadOption("no path: save(path), start(path) or option path")
    sizes: dict[str, Any] = {field: _size(given, name) for name, field in SIZES.items() if name.lower() in given}
    queues = _number(given, "queues")
    if queues is not None and not 1 <= queues <= QUEUES_MAX:
        raise BadOption(f"option queues: 1 to {QUEUES_MAX} wanted, found {queues}")
    sink_id = given.get("sinkid")
    return SinkOptions(
        path=local_path(given["path"]),
        topic=_topic(given),
        queues=queues,
        sink_id=None if sink_id is None else check_sink_id(sink_id),
        batch_id=_number(given, "batchId") or 0,
        checkpoint=given.get("checkpointlocation"),
        is_new_store=_flag(given, "newStore"),
        config=StoreConfig(**sizes, **KEEPS_ALL),
    )


def check_sink_id(text: str) -> str:
    """The id itself, if it can be a folder's name and part of a key."""
    if not _SINK_ID.fullmatch(text):
        wanted = f"letters, digits, '.', '_', '-', at most {SINK_ID_SIZE_MAX}"
        raise BadOption(f"option sinkId: {wanted} wanted, found {text!r}")
    return text


def local_path(path: str) -> str:
    """Without `file:` before it; a store is written through the file system, so no other scheme will do."""
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


def _number(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX):
        raise BadOption(f"option {name}: a whole number wanted, found {text!r}")
    return int(text)


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise BadOption(f"option {name}: true or false wanted, found {text!r}")
    return text == "true"


def _size(given: Mapping[str, str], name: str) -> int:
    text = given[name.lower()]
    try:
        found = size_of(text)
    except ValueError:
        found = 0
    if not 0 < found <= I32_MAX:
        raise BadOption(f"option {name}: 1 to {I32_MAX} wanted, with k, m or g behind it if wanted, found {text!r}")
    return found
