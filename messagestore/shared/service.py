"""Answer requests of other processes with the store that this process has open for writing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from datetime import datetime
from typing import Any

from commitlog import Message, PutResult, PutStatus, StoredMessage
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK
from commitlog.topic_names import HALF_TOPIC, SCHEDULE_TOPIC
from storageio import InvalidMessage, StoreClosed

from ..administration import knows_group
from ..broker.services.half_messages import HalfMessage
from ..property_names import UNIQUE_KEY
from ..store import MessageStore
from ..timers.layout import TIMER_TOPIC
from ._packing_cy import BadFrame, pack_results, unpack_message, unpack_messages
from .answers import pack_error, pack_result, pack_value
from .groups import GroupOpening, Groups, Origin, Parked, QueueClaim
from .protocol import AGAIN, NO_CHECK, Frame, Operation, pack_frame, unique_key_of, unpack_call

NOWHERE = Origin("", None)
AWARE_OF_REPEATS = ("begin", "commit", "delete_group", "delete_topic", "roll_back")


class Service:
    """The requests of one owner. Any thread may call it."""

    def __init__(self, store: MessageStore, client_id: str = "", own_ids: Collection[str] = ()) -> None:
        """Serve a store that is open for writing; `own_ids` are the consumers of this process, which will open again."""
        self._store = store
        self._engine = store.engine
        self.groups = Groups(store, client_id, own_ids)
        self._is_sync = store.config.is_sync_flush
        self._calls: dict[str, Callable[..., Any]] = {
            "begin": self._begin,
            "commit": self._commit,
            "consumer": self.groups.call,
            "consumer_nack": self._nack,
            "consumer_cancel": self.groups.cancel,
            "consumer_open": self._open_consumer,
            "consumer_poll": self.groups.poll,
            "consumer_stop": self.groups.stop,
            "committed_offsets": lambda topic, group: list(store.committed_offsets(topic, group).items()),
            "create_topic": lambda topic, queues, attributes: store.create_topic(topic, queues, attributes=attributes),
            "delete_before": store.delete_before,
            "delete_expired": store.delete_expired,
            "delete_group": self._delete_group,
            "delete_topic": self._delete_topic,
            "flush": store.flush,
            "news": self.news,
            "next_offset": lambda topic, queue_id: store.max_offset(topic, queue_id, committed=False),
            "purge": self._purge,
            "queue_ids": store.queue_ids,
            "reset_offsets": self._reset_offsets,
            "roll_back": self._roll_back,
            "settle": self._engine.settle,
            "topics": store.topics,
            "undecided": self._undecided,
            "workers": self.groups.workers,
        }

    def answer(self, frame: Frame, origin: Origin = NOWHERE) -> bytes:
        """Return the answer to a request; nothing for one that is answered later.

        Raises `StoreClosed` and `BadFrame`, which end the connection.
        """
        try:
            return self._answer(frame, origin)
        except Parked:
            return b""
        except (StoreClosed, BadFrame):
            raise
        except Exception as error:
            return pack_error(error)

    def _answer(self, frame: Frame, origin: Origin) -> bytes:
        is_again, check = bool(frame.flags & AGAIN), not frame.flags & NO_CHECK
        if is_again:  # a query finds what the files have, with synchronous flush what is synced
            self._store.flush()
        if frame.operation == Operation.PUT:
            message = unpack_message(frame.payload, 0)[0]
            found = self._found(message.topic, unique_key_of(message)) if is_again else None
            if found is None:
                found = self._store.put(message, check=check)
                self.groups.offer([(message, found)])
            return pack_result(found)
        if frame.operation == Operation.PUT_EACH:
            outcomes = self._put_each(unpack_messages(frame.payload), is_again)
            return pack_frame(Operation.RESULTS, pack_results(outcomes, pack_error))
        if frame.operation == Operation.PUT_MANY:
            messages = unpack_messages(frame.payload)
            result = self._put_many_again(messages, check) if is_again else self._store.put_many(messages, check=check)
            self.groups.expect_dispatch()
            return pack_result(result)
        if frame.operation != Operation.CALL:
            raise BadFrame(f"operation {frame.operation} is no request")
        name, arguments, messages = unpack_call(frame.payload)
        if name not in self._calls:
            raise BadFrame(f"no call {name!r}")
        more: tuple[Any, ...] = (messages, is_again) if name in AWARE_OF_REPEATS else ()
        if name in ("consumer_open", "consumer_poll"):
            more = (origin,)
        return pack_value(self._calls[name](*arguments, *more))

    def _put_each(self, messages: list[Message], is_again: bool) -> list[PutResult | Exception]:
        """Return what the put of each message returned or raised. With synchronous flush they share a sync."""
        put: Callable[[Message], PutResult | Future[PutResult]] = self._store.put_async if self._is_sync else self._store.put
        begun: list[PutResult | Future[PutResult] | Exception] = []
        for message in messages:
            try:
                found = self._found(message.topic, unique_key_of(message)) if is_again else None
                begun.append(found or put(message))
            except StoreClosed:
                raise
            except Exception as error:
                begun.append(error)
        outcomes = [_outcome(one) if isinstance(one, Future) else one for one in begun]
        if self.groups.is_awaited:
            pairs = zip(messages, outcomes, strict=True)
            self.groups.offer([(message, result) for message, result in pairs if isinstance(result, PutResult)])
        return outcomes

    # Requests that an earlier owner may have carried out

    def _found(self, topic: str, unique_key: str) -> PutResult | None:
        """Return where an earlier owner stored a message, in its topic or where delayed ones wait; None if it did not."""
        for location in (topic, SCHEDULE_TOPIC, TIMER_TOPIC):
            found = self._stored(location, unique_key)
            if found is not None:
                return result_of(found)
        return None

    def _stored(self, topic: str, unique_key: str, transaction: int | None = None) -> StoredMessage | None:
        """Return the first record of a topic with this UNIQ_KEY and transaction flag; KEYS of others may have the same text."""
        for message in self._store.query(topic, unique_key, max_count=self._store.config.max_msgs_num_batch):
            is_meant = transaction is None or message.sys_flag & TRANSACTION_MASK == transaction
            if is_meant and message.all_properties.get(UNIQUE_KEY) == unique_key:
                return message
        return None

    def _put_many_again(self, messages: list[Message], check: bool) -> PutResult:
        """Put those messages that an earlier owner did not store: it may have ended between two of them."""
        stored = [self._found(message.topic, unique_key_of(message)) for message in messages]
        missing = [message for message, result in zip(messages, stored, strict=True) if result is None]
        first = stored[0] if stored else None
        if not missing and first is not None:
            first.message_count = len(messages)
            return first
        result = self._store.put_many(missing, check=check)
        if first is None or result.status is not PutStatus.PUT_OK:
            return result
        first.message_count = len(messages) - len(missing) + result.message_count  # without duplicates
        return first

    # Consumers

    def end_waits(self) -> None:
        """Let every request that waits for messages or news return."""
        self.groups.end()
        self._engine.progress.notify()

    def news(self, seen: int, timeout_s: float, is_ended: Callable[[], bool] = lambda: False) -> int:
        """Wait for the next step of the dispatcher, or for a wait that is to end; return the number of steps."""
        progress = self._engine.progress
        progress.wait_until(lambda: progress.count != seen or is_ended(), timeout_s)
        return progress.count

    def _open_consumer(self, consumer_id: str, opening: list[Any], claims: list[list[Any]], origin: Origin) -> list[Any]:
        found = self.groups.open(consumer_id, GroupOpening(*opening), [QueueClaim(*claim) for claim in claims], origin)
        return [found.in_hand(), self._is_sync]

    def _nack(self, consumer_id: str, physical_offset: int, delay_level: int) -> list[str | None] | None:
        found = self.groups.nack(consumer_id, physical_offset, delay_level)
        return None if found is None else [None if found[0] is None else _packed(found[0])]

    # Topics and groups

    def _delete_topic(self, topic: str, _messages: list[Message], is_again: bool) -> None:
        if not is_again or topic in self._store.topics():
            self._store.delete_topic(topic)

    def _delete_group(self, group: str, _messages: list[Message], is_again: bool) -> None:
        if not is_again or knows_group(self._engine, group):
            self._store.delete_group(group)

    def _purge(self, topic: str, group: str | None) -> int:
        skipped = self._store.purge(topic, group)
        self.groups.serve()
        return skipped

    def _reset_offsets(self, topic: str, group: str, to: str | int, is_time: bool, queues: list[int] | None) -> list[Any]:
        found = self._store.reset_offsets(topic, group, datetime.fromisoformat(str(to)) if is_time else to, queues=queues)
        self.groups.serve()
        return list(found.items())

    # Transactions

    def _begin(self, producer_group: str, messages: list[Message], is_again: bool) -> list[Any]:
        message = messages[0]
        unique_key = unique_key_of(message)
        known = self._stored(HALF_TOPIC, unique_key) if is_again else None
        if known is not None:
            return [_packed(result_of(known)), unique_key]
        transaction = self._store.begin_transaction(message, producer_group=producer_group)
        return [_packed(transaction.half), transaction.transaction_id]

    def _commit(self, half_offset: int, topic: str, unique_key: str, _messages: list[Message], is_again: bool) -> str:
        try:
            return _packed(self._engine.transactions.commit(half_offset))
        except InvalidMessage:
            committed = self._stored(topic, unique_key, TRANSACTION_COMMIT) if is_again else None
            if committed is None:
                raise
            return _packed(result_of(committed))

    def _roll_back(self, half_offset: int, _messages: list[Message], is_again: bool) -> None:
        try:
            self._engine.transactions.rollback(half_offset)
        except InvalidMessage:
            if not is_again:
                raise

    def _undecided(self, older_than_ms: int) -> list[list[int]]:
        halves: list[HalfMessage] = self._store.undecided_transactions(older_than_ms)
        return [[half.queue_offset, half.message.physical_offset] for half in halves]


def _outcome(future: Future[PutResult]) -> PutResult | Exception:
    try:
        return future.result()
    except StoreClosed:
        raise
    except Exception as error:
        return error


def _packed(result: PutResult) -> str:
    """Return a result as text, for a JSON answer."""
    return pack_result(result).hex()


def result_of(message: StoredMessage) -> PutResult:
    """Return the result of the put that stored a message."""
    result: PutResult = PutResult.__new__(PutResult)
    result.status, result.reason, result.cause, result.message_count = PutStatus.PUT_OK, None, None, 1
    result.queue_id, result.queue_offset = message.queue_id, message.queue_offset
    result.physical_offset, result.size_bytes = message.physical_offset, message.size
    result.store_timestamp_ms = message.store_timestamp_ms
    result.store_host = bytes.fromhex(message.message_id)[:-8]  # the id is the host and the offset
    return result
