"""One file for each kind of queue: the rule of its units, how they are checked, and how they are rebuilt.

    ordinary    20 bytes for each message; the kernel makes them
    scheduled   ordinary units with the due time of a delayed message in place of the tags code
    extended    ordinary units with the address of an extended unit in place of the tags code
    lmq         units of records of other topics
    batch       units of records that hold many messages
    rocksdb     all of these as rows of a database

What is imported here is for callers that do not distinguish the kinds of queues which a record may be in.
"""

from .lmq import add_to_other_queues, listed_queues, other_units, queue_keys_of
from .ordinary import is_dispatched, tags_code

__all__ = ["add_to_other_queues", "is_dispatched", "listed_queues", "other_units", "queue_keys_of", "tags_code"]
