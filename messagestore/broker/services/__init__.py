"""Implement what a broker does on top of its store, in the broker's own topics and config files.

    transactions.py    half messages: commit, rollback, and the check of undecided ones
    half_messages.py   find undecided half messages by reading the queues
    delays.py          messages that wait in SCHEDULE_TOPIC_XXXX, and their delivery by the housekeeper
    timers.py          messages with any delivery time, through the timer files of RocketMQ 5
    delay_resume.py    find which of them are already delivered: after a crash, in a copy, on a slave
    retries.py         messages that a consumer sends back: %RETRY%group with a delay, finally %DLQ%group
    multi_puts.py      offsets in the other queues that a message lists, assigned under one lock, and their limit
    batch_puts.py      records that hold many messages, for topics with batch queues
    replication.py     raw log bytes from a master to a slave
    copying.py         copy selected topics into a new store
    internal_puts.py   the puts of these services
    names.py           the broker's topics and properties

All state is in records, as in a real broker, so a broker can continue what was begun here, and vice versa.
"""
