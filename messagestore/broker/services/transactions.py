"""Keep transactional messages as a broker does (`docs/formats/broker-topics.md#transactions`).

`begin` puts a *half message* to RMQ_SYS_TRANS_HALF_TOPIC, where consumers of the real topic do not see it. A commit puts the
message to its real topic, with the commit bits and the physical offset of the half record. Commit and rollback both write an op
record that names the half message. After a restart, undecided half messages are found again (`half_messages.py`). `check` asks
about them as the broker's check service does. A half message that stays undecided is put again with an increased check count,
so that the offset of the group CID_RMQ_SYS_TRANS can advance.

The group's offsets count only what is flushed: a half message is done when the record that decided it is flushed.
"""

from __future__ import annotations

import logging
import threading
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from commitlog import Message, PutResult, StoredMessage, decode_properties, encode_properties
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK
from commitlog.status import FINAL
from commitlog.topic_names import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC
from storageio import InvalidMessage, PutRejected

from ...property_names import (
    CHECK_TIMES,
    DELAY,
    IS_TRANSACTION,
    MULTI_DISPATCH,
    OP_TAG,
    PRODUCER_GROUP,
    REAL_QUEUE,
    REAL_TOPIC,
    TIMERS,
    TRANSACTION_GROUP,
    TRANSACTION_ID,
    UNIQUE_KEY,
    WAIT,
)
from ...write.putting import with_pairs, without_pairs
from .half_messages import Family, HalfMessage, are_copies, family, read_transactions

if TYPE_CHECKING:
    from types import TracebackType

    from ...parts import StoreParts
    from ...write.admission import Admission
    from .internal_puts import InternalPuts

UNDECIDED = -1
LOG = logging.getLogger(f"brokerstore.{__name__}")
Decide = Callable[[HalfMessage], bool | None]


class PreparedMessage(ABC):
    """One prepared message.

    As a context manager it commits at the end of the block, and rolls back if the block raises.
    """

    def __init__(self, half: PutResult, transaction_id: str) -> None:
        """Create it from the result of the put that prepared the message."""
        self.half = half
        self.transaction_id = transaction_id
        self.committed: PutResult | None = None
        self.is_decided = False

    def commit(self) -> PutResult:
        """Put the message to its topic and return the result. Raises `InvalidMessage` if it is already decided."""
        self._check_undecided()
        self.committed = self._commit()
        self.is_decided = True
        return self.committed

    def rollback(self) -> None:
        """Discard the message. Raises `InvalidMessage` if it is already decided."""
        self._check_undecided()
        self._roll_back()
        self.is_decided = True

    def _check_undecided(self) -> None:
        if self.is_decided:
            raise InvalidMessage(f"half message {self.half.queue_offset} is already decided")

    @abstractmethod
    def _commit(self) -> PutResult:
        """Commit in the store."""

    @abstractmethod
    def _roll_back(self) -> None:
        """Roll back in the store."""

    def __enter__(self) -> Self:
        """Return the transaction itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Commit or roll back, unless the block did."""
        if self.is_decided:
            return
        if kind is None:
            self.commit()
        else:
            self.rollback()


class Transaction(PreparedMessage):
    """One prepared message of a store that this process writes."""

    def __init__(self, transactions: Transactions, half: PutResult, transaction_id: str) -> None:
        """Create a transaction; called by `Transactions.begin`."""
        super().__init__(half, transaction_id)
        self._transactions = transactions

    def _commit(self) -> PutResult:
        return self._transactions.commit(self.half.queue_offset)

    def _roll_back(self) -> None:
        self._transactions.rollback(self.half.queue_offset)


class Transactions:
    """The transactions of one open store. Their state is read from the queues at first use."""

    def __init__(self, parts: StoreParts, admission: Admission, puts: InternalPuts) -> None:
        """Create the manager without reading anything."""
        self._parts = parts
        self._admission = admission
        self._puts = puts
        self._guard = threading.RLock()
        self._open: dict[int, tuple[int, int]] | None = None  # half offset -> (physical offset, end of deciding record)
        self._ops: deque[tuple[int, int]] = deque()  # (queue offset, greatest half offset) of pending op records
        self._sent: dict[int, PutResult] = {}  # half offset -> committed record still without an op record
        self._newest: dict[int, int] = {}  # half offset -> that of its newest copy
        self._restored: dict[Family, int] = {}  # half offsets of copies from before this process
        self._earlier: dict[int, list[int]] = {}  # newest copy -> half offsets of all earlier copies

    def begin(self, message: Message, queue_id: int, producer_group: str) -> Transaction:
        """Put a half message for a queue of the message's own topic, which is already admitted."""
        self._parts.settle()
        raw = encode_properties(message)
        pairs = decode_properties(raw)
        if DELAY in pairs or not pairs.keys().isdisjoint(TIMERS):
            raise InvalidMessage("a transactional message takes no delay")
        unique = pairs.get(UNIQUE_KEY) or uuid.uuid4().hex.upper()
        marks = {
            UNIQUE_KEY: unique, TRANSACTION_ID: unique, IS_TRANSACTION: "true", PRODUCER_GROUP: producer_group,
            REAL_TOPIC: message.topic, REAL_QUEUE: str(queue_id),
        }  # fmt: skip
        half = Message(
            HALF_TOPIC, message.body, queue_id=0, flag=message.flag, sys_flag=message.sys_flag & ~TRANSACTION_MASK,
            born_timestamp_ms=message.born_timestamp_ms, born_host=message.born_host, store_host=message.store_host,
            reconsume_times=message.reconsume_times, properties_raw=with_pairs(raw, marks),
        )  # fmt: skip
        with self._guard:
            open_ = self._load()
            result = self._put(half)
            open_[result.queue_offset] = (result.physical_offset, UNDECIDED)
        self._puts.wait(result)
        return Transaction(self, result, unique)

    def _put(self, message: Message) -> PutResult:
        """Put a message to queue 0 of one of the broker's own topics.

        The caller waits for the sync after it releases the lock, so that several transactions share one sync.
        """
        self._admission.admit(message.topic)
        return self._puts.put(message, 0, waits=False)

    def commit(self, half_offset: int) -> PutResult:
        """Put a half message to its topic, then write the op record.

        If an earlier call failed between the two, for example because the disk was full, only the op record is written.
        """
        with self._guard:
            newest = self._newest.get(half_offset, half_offset)
            if newest not in self._sent:
                self._send(self._undecided(newest))
            result = self._sent[newest]
            op = self._decide(newest)
        self._puts.wait(op)
        return result

    def newest(self, half: HalfMessage) -> int:
        """Return the half offset of the undecided copy of a half message; its own if there is none.

        Its producer may name the first one after a restart.  `commit` and `rollback` know copies that this process put.
        """
        with self._guard:
            open_ = self._load()
            known = half.queue_offset if half.queue_offset in self._newest else self._restored.get(family(half), -1)
            offset = self._newest.get(known, known)
            physical, end = open_.get(offset, (0, 0))
            is_own = end != UNDECIDED or open_.get(half.queue_offset, (0, 0))[1] == UNDECIDED
            copy = None if is_own else self._message(physical)
        is_copy = copy is not None and are_copies(half, HalfMessage(offset, copy))
        return offset if is_copy else half.queue_offset

    def _send(self, half: HalfMessage) -> None:
        """Put a half message to its topic. From here on it counts as committed, whether or not the op record is written."""
        message = half.message.to_message()
        message.topic, message.queue_id, message.store_host = half.topic, half.queue_id, None
        message.sys_flag = message.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
        message.prepared_transaction_offset = half.message.physical_offset
        self._admission.admit(message.topic)
        result = self._puts.put(message, half.queue_id, waits=False)
        self._sent[half.queue_offset] = result
        self._load()[half.queue_offset] = (half.message.physical_offset, result.physical_offset + result.size_bytes)

    def _finish_sent(self) -> None:
        """Write the op records that an earlier commit could not write."""
        for half_offset in list(self._sent):
            self._decide(half_offset)

    def rollback(self, half_offset: int) -> None:
        """Mark a half message as rolled back."""
        with self._guard:
            self._finish_sent()
            half = self._undecided(self._newest.get(half_offset, half_offset))
            op = self._decide(half.queue_offset)
        self._puts.wait(op)

    def _undecided(self, half_offset: int) -> HalfMessage:
        physical, end = self._load().get(half_offset, (UNDECIDED, 0))
        message = self._message(physical) if end == UNDECIDED else None
        if message is None:
            raise InvalidMessage(f"half message {half_offset} is decided, or never was")
        half = HalfMessage(half_offset, message)
        if not half.is_dispatched_to:
            raise InvalidMessage(f"half message {half_offset} does not say where it belongs")
        return half

    def _message(self, physical_offset: int) -> StoredMessage | None:
        """Return the record of a half message.

        Commits the transient store pool first if the record may still be there.
        """
        parts = self._parts
        if parts.log.buffers is not None and physical_offset >= parts.log.committed_offset:
            parts.flusher.commit(0)
        return parts.log.message_at(physical_offset)

    def _decide(self, half_offset: int) -> PutResult:
        """Write the op record and drop the state that was kept for it."""
        properties = {"TAGS": OP_TAG, WAIT: "true"}
        op = self._put(Message(OP_TOPIC, b"%d," % half_offset, properties=properties, queue_id=0))
        open_ = self._load()
        if half_offset in open_:  # the group's offset may have passed a late op record
            open_[half_offset] = (open_[half_offset][0], op.physical_offset + op.size_bytes)
        self._ops.append((op.queue_offset, half_offset))
        self._sent.pop(half_offset, None)
        self._forget_earlier(half_offset)
        return op

    def _forget_earlier(self, half_offset: int) -> list[int]:
        """Remove the mappings from earlier copies to this one and return their half offsets."""
        earlier = self._earlier.pop(half_offset, [])
        for offset in earlier:
            del self._newest[offset]
        return earlier

    def _lead_on(self, half_offset: int, copy_offset: int) -> None:
        """Redirect holders of a half message, or of an earlier copy, to the copy that was put now."""
        earlier = [*self._forget_earlier(half_offset), half_offset]
        self._earlier[copy_offset] = earlier
        self._newest.update(dict.fromkeys(earlier, copy_offset))

    # Undecided half messages

    def undecided(self, older_than_ms: int = 0) -> list[HalfMessage]:
        """Return undecided half messages, oldest first, without those born less than `older_than_ms` milliseconds ago."""
        self._parts.settle()
        newest_ms = self._parts.now_ms() - older_than_ms
        with self._guard:
            positions = [(offset, physical) for offset, (physical, end) in self._load().items() if end == UNDECIDED]
        found = []
        for offset, physical in positions:
            message = self._message(physical)
            if message is not None and (older_than_ms <= 0 or message.born_timestamp_ms <= newest_ms):
                found.append(HalfMessage(offset, message))
        return found

    def check(self, decide: Decide, older_than_ms: int | None, times_max: int) -> int:
        """Call `decide` for each undecided half message and return how many were asked about.

        A half message that is younger than `older_than_ms` waits for a later check; with None, one that is younger than its
        producer or `transaction_timeout_ms` says.

        True commits the message, False rolls it back, None leaves it open. A message that stays open is put again with its
        check count increased. After `times_max` checks it goes to TRANS_CHECK_MAX_TIME_TOPIC. A message that no topic accepts
        goes there too, as does a filler record of a recovery: otherwise it would block the check of all later ones.
        """
        with self._guard:
            self._finish_sent()
        checked = 0
        now_ms, default_ms = self._parts.now_ms(), self._parts.config.transaction_timeout_ms
        for half in self.undecided(older_than_ms or 0):
            if older_than_ms is None and now_ms - half.message.born_timestamp_ms < half.age_before_check_ms(default_ms):
                continue
            is_over = half.check_times >= times_max or not half.is_dispatched_to
            answer = None if is_over else decide(half)
            checked += 1
            with self._guard:
                if self._load().get(half.queue_offset, (0, 0))[1] != UNDECIDED:
                    continue  # decided by another thread meanwhile
                if answer is None:
                    self._put_again(half, is_over)
                elif answer:
                    self._commit_or_give_up(half)
                else:
                    self.rollback(half.queue_offset)
        self.save_progress()
        return checked

    def _commit_or_give_up(self, half: HalfMessage) -> None:
        try:
            self.commit(half.queue_offset)
        except (InvalidMessage, PutRejected) as error:
            if isinstance(error, PutRejected) and error.status not in FINAL:
                raise
            LOG.error("half message %d is given up: %s", half.queue_offset, error)
            self._put_again(half, is_given_up=True)

    def _put_again(self, half: HalfMessage, is_given_up: bool) -> None:
        """Put the half message behind the others, so that the group's offset can pass it."""
        again = half.message.to_message()
        again.store_host = None
        if is_given_up:
            again.topic = GIVEN_UP_TOPIC
            again.properties_raw = without_pairs(
                half.message.properties_raw, (MULTI_DISPATCH,)
            )  # a given-up message belongs to no other queue
        else:
            raw = without_pairs(half.message.properties_raw, (CHECK_TIMES,))
            again.properties_raw = with_pairs(raw, {CHECK_TIMES: str(half.check_times + 1)})
        result = self._put(again)
        open_ = self._load()
        open_[half.queue_offset] = (half.message.physical_offset, result.physical_offset + result.size_bytes)
        if is_given_up:
            self._forget_earlier(half.queue_offset)
        else:
            open_[result.queue_offset] = (result.physical_offset, UNDECIDED)
            self._lead_on(half.queue_offset, result.queue_offset)

    # Progress

    def _load(self) -> dict[int, tuple[int, int]]:
        """Return the open half messages; read them from the queues the first time."""
        if self._open is None:
            queues = self._parts.queues
            halves, ops, ends = read_transactions(self._parts, queues.get(HALF_TOPIC, 0), queues.get(OP_TOPIC, 0))
            self._open = {
                half.queue_offset: (half.message.physical_offset, ends.get(half.queue_offset, UNDECIDED)) for half in halves
            }
            undecided = [half for half in halves if half.queue_offset not in ends]
            self._restored = {family(half): half.queue_offset for half in undecided if half.check_times}
            self._ops = deque((op.queue_offset, max(op.half_offsets, default=-1)) for op in ops)
        return self._open

    def save_progress(self, *, loads: bool = False) -> None:
        """Advance the group's offsets past half messages that are durably decided or lost.

        Reads no record, unless `loads` is set and nothing was read yet.
        """
        with self._guard:
            if loads:
                self._load()
            if self._open is None:
                return
            flushed = self._parts.flusher.flushed_offset
            low = self._parts.log.min_offset
            for offset, (physical, end) in list(self._open.items()):
                is_lost = end == UNDECIDED and physical < low  # retention deleted it
                if not is_lost and (end == UNDECIDED or end > flushed):
                    break
                del self._open[offset]
                self._forget_earlier(offset)
            half_end = next(iter(self._open), self._parts.offsets.next_offset(HALF_TOPIC, 0))
            while self._ops and self._ops[0][1] < half_end:
                self._ops.popleft()
            op_end = self._ops[0][0] if self._ops else self._parts.offsets.next_offset(OP_TOPIC, 0)
            self._commit(HALF_TOPIC, half_end)
            self._commit(OP_TOPIC, op_end)

    def _commit(self, topic: str, offset: int) -> None:
        table = self._parts.consumer_offsets()
        if (table.get(topic, TRANSACTION_GROUP, 0) or 0) < offset:
            table.commit(topic, TRANSACTION_GROUP, 0, offset)
