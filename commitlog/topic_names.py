"""Names of topics that the broker gives a meaning (`docs/formats/broker-topics.md`)."""

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"  # half messages that stayed undecided for too long
SYSTEM_TOPICS = frozenset(
    {
        "BenchmarkTest",
        "CHECKPOINT_TOPIC",
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "SELF_TEST_TOPIC",
        "TBW102",
        GIVEN_UP_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        SCHEDULE_TOPIC,
    }
)
SYSTEM_PREFIX = "rmq_sys_"
# Topics in which only a broker's own services put messages: a record of someone else would decide, deliver or delete for them.
INTERNAL_TOPICS = frozenset(
    {
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "SELF_TEST_TOPIC",
        GIVEN_UP_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        SCHEDULE_TOPIC,
    }
)
RETRY_PREFIX = "%RETRY%"
DEAD_PREFIX = "%DLQ%"
LMQ_PREFIX = "%LMQ%"
FILLER_TOPIC = "BROKERSTORE_FILLER"  # of padding, which enters no queue (docs/formats/commitlog.md#filler-records)


def is_virtual_topic(name: str) -> bool:
    """Return whether a topic's queues hold records of other topics: an LMQ, which is in no table of topics."""
    return name.startswith(LMQ_PREFIX)
