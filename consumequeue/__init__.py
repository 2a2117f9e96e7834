"""Consume queues: for each topic and queue id, where its messages lie in the commit log.

Files
- `consumequeue/<topic>/<queue id>/<20 digits>`: 20-byte units, 300,000 a file (6,000,000 bytes) unless configured.  A file
  is named by the offset in the queue of its first byte; unit k is at byte 20 k of the queue, and k is the *queue offset*.
  The files are sparse: full-length from the start, with zeros after the last unit.
- `consumequeue_ext/<topic>/<queue id>/<20 digits>`: units with filter bitmaps, which a broker may write (`ConsumeQueueExt`
  reads them, `ExtWriter` appends to them).  A queue unit then holds an address instead of its tags code.
- `batchconsumequeue/<topic>/<queue id>/<20 digits>`: 46-byte units, one for a record of many messages (`BatchQueue`;
  `BatchQueues` holds all of a store).
The format: `docs/formats/consumequeue.md`.  The rules: `docs/formats/recovery.md`, `docs/formats/mapped-files.md#deletion`,
`docs/formats/read-rules.md#offset-by-time`.

Order of calls
- A writer makes `ConsumeQueues(disk, folder, writable=True, file_size_bytes=...)`.  After a clean stop each queue finds its
  end by binary search when it is first used.  After an unclean stop call `recover()`, then, once the log is cut at P,
  `truncate(P)`; then `correct_min_offsets(log minimum)`.
- `get_or_add(topic, queue_id).append_run(first_queue_offset, packed_units)` from one thread, in the order of the log.
  Repeats are skipped, so a range of the log may be dispatched again.
- `flush(least_pages)` from any one thread.  Readers may run beside all of it.
- A reader beside a live writer opens with `writable=False` and calls `discover()` and `queue.refresh()`.

What the words mean
- *written*: `append_run` returned; every process sees the units.  A crash of the machine may lose them, whole pages in any
  order, and lose the names of new files.
- *flushed*: `flush` returned; units and names are on the disk up to `queue.flushed`.
- Queues hold nothing that the log does not: their contents are checked against it, and a lost queue is rebuilt.

Differences from RocketMQ: truncated bytes are zeroed; blanks before a first unit count neither for the minimum nor for
`max_physical_offset`; an expired first file does not hold the minimum back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storebytes.lazy_names import lazy_names  # first of all: `storebytes` selects the build of the kernels

if TYPE_CHECKING:
    from ._time_cy import StoreTimeOf, offset_by_time
    from .all_queues import AllQueues
    from .batch import BATCH_SIZE_MAX, BatchQueue, BatchUnit, batch_offset_by_time
    from .batch_queues import BatchQueues
    from .boundary import Boundary
    from .consume_queues import ConsumeQueues, find_file_size, refuse_other_file_size
    from .ext import ConsumeQueueExt, ExtUnit, ext_folder, is_ext_address
    from .ext_writer import ExtWriter
    from .ordinary import NO_RECORD, ConsumeQueue, Unit
    from .queue import Queue
    from .queue_files import QueueFiles
    from .queue_listing import check_queue_id, check_topic, listed_ids, queue_folders
else:
    __getattr__, __dir__ = lazy_names(
        globals(),
        {
            "._time_cy": ["StoreTimeOf", "offset_by_time"],
            ".all_queues": ["AllQueues"],
            ".batch": ["BATCH_SIZE_MAX", "BatchQueue", "BatchUnit", "batch_offset_by_time"],
            ".batch_queues": ["BatchQueues"],
            ".boundary": ["Boundary"],
            ".consume_queues": ["ConsumeQueues", "find_file_size", "refuse_other_file_size"],
            ".ext": ["ConsumeQueueExt", "ExtUnit", "ext_folder", "is_ext_address"],
            ".ext_writer": ["ExtWriter"],
            ".ordinary": ["NO_RECORD", "ConsumeQueue", "Unit"],
            ".queue": ["Queue"],
            ".queue_files": ["QueueFiles"],
            ".queue_listing": ["check_queue_id", "check_topic", "listed_ids", "queue_folders"],
        },
    )

__all__ = [
    "BATCH_SIZE_MAX",
    "NO_RECORD",
    "AllQueues",
    "BatchQueue",
    "BatchQueues",
    "BatchUnit",
    "Boundary",
    "ConsumeQueue",
    "ConsumeQueueExt",
    "ConsumeQueues",
    "ExtUnit",
    "ExtWriter",
    "Queue",
    "QueueFiles",
    "StoreTimeOf",
    "Unit",
    "batch_offset_by_time",
    "check_queue_id",
    "check_topic",
    "ext_folder",
    "find_file_size",
    "is_ext_address",
    "listed_ids",
    "offset_by_time",
    "queue_folders",
    "refuse_other_file_size",
]
