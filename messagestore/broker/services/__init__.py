"""What a broker does on top of its store, in the broker's own topics and config files.

    transactions.py    half messages, commit, rollback, and the check of those that nobody decided
    half_messages.py   which half messages are undecided, told by the queues alone
    delays.py          messages that wait in SCHEDULE_TOPIC_XXXX, and their delivery by the housekeeper
    delay_resume.py    after a crash, in a copy, of a slave: which of them were delivered already
    retries.py         messages that a consumer sends back: %RETRY%group with a delay, at last %DLQ%group
    light_puts.py      numbers in light queues, given under one lock, and the limit on such queues
    batch_puts.py      records that hold many messages, for topics with batch queues
    replication.py     raw log bytes from a master to a slave
    copying.py         chosen topics into a new store
    admission.py       which topics there are, written down before their first message
    putting.py         the one way in which these put
    names.py           the broker's topics and properties

Each is told of records alone, as a real broker's are, so a broker can go on with what was begun here, and the other way.
"""
