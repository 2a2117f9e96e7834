"""Name the groups and properties that RocketMQ gives a meaning (`docs/formats/broker-topics.md`)."""

from __future__ import annotations

from commitlog.topic_names import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
SYSTEM_QUEUES = {HALF_TOPIC: 1, OP_TOPIC: 1, GIVEN_UP_TOPIC: 1}  # number of queues, where it is not the default

# Properties.
DELAY = "DELAY"
TIMER_DELAY_S = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMERS = (TIMER_DELAY_S, TIMER_DELAY_MS, TIMER_DELIVER_MS)  # the first that a message has counts
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE = "REAL_QID"
WAIT = "WAIT"
UNIQUE_KEY = "UNIQ_KEY"
IS_TRANSACTION = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
FIRST_TOPIC = "RETRY_TOPIC"  # of a message that was sent back
FIRST_ID = "ORIGIN_MESSAGE_ID"
INNER_COUNT = "INNER_NUM"
INNER_BASE = "INNER_BASE"
MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
PRIORITY = "_SYS_MSG_PRIORITY_"

# Properties of this library, which a broker keeps and does not look at.
DEDUP_ID = "BROKERSTORE_DEDUP_ID"
TTL_MS = "BROKERSTORE_TTL_MS"  # from the born time on
EXPIRED_MS = "BROKERSTORE_EXPIRED_MS"  # of a dead letter: when its time to live was over

# A message with one of these needs more than an append: `broker.services.routing` decides what, and every put looks for them.
SPECIAL = (DELAY, *TIMERS, MULTI_DISPATCH, INNER_COUNT, PRIORITY, DEDUP_ID)

OP_TAG = "d"
IS_BATCH = 0x80  # system flag of a record that holds many messages
