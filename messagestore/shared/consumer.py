"""A consumer of a shared store: its queues and acknowledgements are at the owner, its messages are read here."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from commitlog import PutResult, StoredMessage
from consumequeue import Boundary
from storageio import REAL_DISK, StoreClosed, StoreError, random_bytes
from storageio.local_sockets import PeerGone, PeerSilent
from storageio.settings import check_type

from ..broker.config.ack_file import LeasedFile, LeasedWords
from ..read.consumer import Consumer
from ..read.delivery_rules import MS_MAX, NO_RULES, DeliveryRules
from ..read.polled import FETCH_COUNT, Polled
from .answers import unpack_answer, unpack_packed_result
from .client import OwnerChannel
from .election import Member
from .groups import NOTHING, GroupOpening, Origin, OwnPolls, QueueClaim
from .protocol import HANDED_ROW, Operation, pack_call

POLL_S = 5.0  # a poll that waits for longer asks again
PAUSE_S, PAUSE_MAX_S = 0.000_1, 0.001
DENSE_S = 0.000_5  # between a request and its answer
DENSE_COUNT, DENSE_AGAIN = 16, 32
AHEAD_S = 0.1  # how long messages that follow those of an answer are taken before the owner is asked, who also has retries


class _Track:
    """What this consumer knows of one queue in its hand."""

    def __init__(self, turn: int, position: int) -> None:
        self.turn = turn
        self.position = position
        self.held: dict[int, int] = {}  # in order: handed out, not acknowledged; when the delivery ends, in ms
        self.is_exact = False  # since a seek
        self.is_done = True  # nothing was acknowledged since a seek: False
        self.lease: LeasedWords | None = None

    @property
    def done_before(self) -> int:
        return min(next(iter(self.held), self.position), self.position) if self.is_done else -1

    def hold(self, queue_offset: int, deadline_ms: int) -> None:
        """Note that a message is handed out; a new owner may hand out again what it has not dispatched."""
        is_again = bool(self.held) and next(reversed(self.held)) > queue_offset
        self.held[queue_offset] = deadline_ms
        if is_again:
            self.held = dict(sorted(self.held.items()))

    def update(self, leased: LeasedFile, position: int, lease_id: int = 0, at: int = 0) -> None:
        """Take what the owner says of the queue."""
        self.position = position
        if self.lease is None or not self.lease.is_open:
            self.lease = leased.find(lease_id, at) if lease_id else None

    def acknowledge(self, queue_offset: int) -> int:
        """Store that the first message in hand is acknowledged; return the next offset, 0 if the owner has to do it."""
        held = iter(self.held)
        if self.lease is None or next(held, None) != queue_offset:
            return 0
        next_offset = min(next(held, self.position), self.position)
        self.lease.store_next_offset(next_offset)
        return next_offset


class _Pace:
    """How long a poll waits before it asks the owner: an answer with one message costs as much as one with many.

    It waits if the last answer came immediately, and as long as that makes answers with several messages.
    """

    def __init__(self) -> None:
        self._pause_s = self._requested_at = 0.0
        self._rest = 0  # answers until it tries again

    def begin(self, timeout_s: float) -> None:
        if self._pause_s and timeout_s > 0:
            time.sleep(min(self._pause_s, timeout_s / 2))
        self._requested_at = time.monotonic()

    def end(self, count: int) -> None:
        if self._pause_s:
            if count <= 1:
                self._pause_s, self._rest = 0.0, DENSE_AGAIN
            elif count < DENSE_COUNT:
                self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        elif self._rest:
            self._rest -= 1
        elif count and time.monotonic() - self._requested_at < DENSE_S:
            self._pause_s = PAUSE_S


class SharedConsumer(Polled):
    """An iterator over a topic's messages, as `Consumer`, of a group whose consumers may be in several processes.

    The owner of the store divides the queues among the living consumers of all processes. A killed process loses its queues at
    once. When the owner ends, the consumer goes on at the next one with what it has.
    """

    def __init__(
        self, member: Member, message_at: Callable[[int], StoredMessage | None], topic: str, group: str,
        queues: list[int] | None, tags: set[str] | None, timeout_s: float | None, start: str, missing_topic: str,
        rules: DeliveryRules = NO_RULES,
    ) -> None:  # fmt: skip
        """Create it; called by `SharedStore.consumer`."""
        super().__init__(timeout_s)
        self.topic = topic
        self.group = group
        self._member = member
        self._message_at = message_at
        listed = None if tags is None else sorted(tags)
        self._opening = GroupOpening(topic, group, queues, listed, start, missing_topic, time.monotonic_ns(), *rules)
        self._rules = rules
        self.id = random_bytes(8).hex()
        self._guard = threading.RLock()  # one thread polls or opens
        self._tracks_guard = threading.Lock()
        self._tracks: dict[tuple[str, int], _Track] = {}
        self._done: dict[tuple[str, int], int] = {}  # of queues that others have now: the owner may not have saved it
        self._ahead: deque[tuple[int, int]] = deque()  # messages to take next: physical offset, and queue offset behind it
        self._ahead_key = topic, -1
        self._ahead_ends = 0.0
        self._pace = _Pace()
        self._syncs = False  # whether an acknowledgement waits for a sync of the owner
        self._channel: OwnerChannel | None = None
        self._own: Consumer | None = None
        self._own_polls = OwnPolls()
        member.announce()
        self._open()
        member.consumers.add(self)

    # Opening

    def _open(self) -> None:
        """Open at the owner, whichever process it is, unless that was done."""
        with self._guard:
            deadline = time.monotonic() + self._member.wait_s
            while not self._is_open():
                self._check()
                seen = self._member.change_count
                try:
                    self._try_to_open()
                except PeerGone:
                    self._drop_channel()
                    self._member.wait_for_owner(deadline, seen)

    def rejoin(self) -> None:
        """Open again at a new owner, even if no thread uses the consumer now: others must not get what it holds."""
        with suppress(StoreError), self._guard:
            channel = self._channel
            if self._own is None and (channel is None or channel.is_ended):
                self._drop_channel()
                self._open()

    def _is_open(self) -> bool:
        return self._own is not None or (self._channel is not None and self._member.service is None)

    def _try_to_open(self) -> None:
        service = self._member.service
        claims = self._claims()
        if service is not None:
            own = self._own = service.groups.open(self.id, self._opening, claims, Origin(self._member.client_id, None))
            self._drop_channel()
            if self.is_stopped:
                own.stop()
            return
        self._channel = self._member.new_channel()
        answer = self._channel.exchange(pack_call("consumer_open", self.id, self._opening, claims))
        try:
            in_hand, self._syncs = unpack_answer(answer)
        except BaseException:
            self._drop_channel()
            raise
        self._opening = self._opening._replace(start="first", missing_topic="wait")
        with self._tracks_guard:
            for topic, queue_id, turn, *rest in in_hand:
                track = self._tracks.setdefault((topic, queue_id), _Track(turn, 0))
                track.turn = turn
                track.update(self._member.leased, *rest)
        if self.is_stopped:
            self._channel.send(self._stop_call)

    def _claims(self) -> list[QueueClaim]:
        with self._tracks_guard:
            return [
                *(QueueClaim(topic, queue_id, done, [], done, False) for (topic, queue_id), done in self._done.items()),
                *(
                    QueueClaim(
                        topic, queue_id, track.position, list(track.held), track.done_before, track.is_exact,
                        list(track.held.values()),
                    )
                    for (topic, queue_id), track in self._tracks.items()
                ),
            ]  # fmt: skip

    def _drop_channel(self) -> None:
        channel, self._channel = self._channel, None
        self._ahead.clear()
        with self._tracks_guard:
            for track in self._tracks.values():
                track.lease = None
        if channel is not None:
            channel.close()

    def _check(self) -> None:
        if self.is_closed:
            raise StoreClosed("the consumer is closed")
        self._member.check_open()

    # Iterating

    def poll(self, max_count: int = FETCH_COUNT, timeout_s: float | None = 0) -> list[StoredMessage]:
        """Return up to `max_count` messages; wait for the first of them until the time-out, without a limit with None.

        What was put before the call is found.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_ended():
            if self._ahead and (found := self._take_ahead(max_count)):
                return found
            left_s = POLL_S if deadline is None else max(0.0, deadline - time.monotonic())
            own = self._own
            if own is not None:
                found = self._poll_own(own, max_count, left_s)
            else:
                self._pace.begin(left_s)
                answer = self._poll_once(max_count, min(left_s, POLL_S))
                if answer is None:
                    continue
                found = answer
                self._pace.end(len(found) + len(self._ahead))
            if found or (deadline is not None and time.monotonic() >= deadline):
                return found
        self._hand_over()
        return []

    def _is_ended(self) -> bool:
        return self.is_closed or self.is_stopped

    @property
    def _stop_call(self) -> bytes:
        return pack_call("consumer_stop", self.id)

    def stop(self) -> None:
        """End the iteration, as `Consumer.stop`: from any thread and from a signal handler."""
        self.is_stopped = True  # no lock from here on: a signal handler may have interrupted the thread that holds it
        own, channel = self._own, self._channel
        if own is not None:
            own.stop()
            self._own_polls.interrupt()
        elif channel is not None:
            with suppress(StoreError):  # who opens it again sees that it was stopped
                channel.send(self._stop_call)

    def _hand_over(self) -> None:
        """Give the queues of a stopped consumer of the owner's process to those that wait for them."""
        service = self._member.service
        if self._own is not None and service is not None and not self.is_closed:
            service.groups.serve()

    def _poll_once(self, max_count: int, timeout_s: float) -> list[StoredMessage] | None:
        """Ask the owner once; None if it ended meanwhile: the next one is asked even if the time is over."""
        with self._guard:
            try:
                self._open()
                channel = self._channel
                if channel is None:
                    return None
                data = pack_call("consumer_poll", self.id, max_count, timeout_s > 0)
                frame = channel.exchange_until(data, timeout_s, pack_call("consumer_cancel", self.id), self._is_ended)
                if frame.operation == Operation.HANDED:
                    return self._handed(frame.payload)
                answer = unpack_answer(frame)
            except PeerGone:
                self._drop_channel()
                return None
            except PeerSilent as error:
                self._drop_channel()
                raise self._member.busy() from error
            except StoreClosed:
                if self.is_closed:
                    return []
                raise
            except BaseException:  # the answer may still come
                self._drop_channel()
                raise
            if answer is None:
                self._drop_channel()
                return None
            return self._taken(*answer)

    def _take_ahead(self, max_count: int) -> list[StoredMessage]:
        """Take messages that follow those of the last answer without asking the owner; nothing if it has to be asked."""
        with self._guard:
            self._check()
            ahead, key = self._ahead, self._ahead_key
            track = self._tracks.get(key)
            lease = track.lease if track is not None else None
            if len(ahead) < max_count or time.monotonic() > self._ahead_ends or track is None or lease is None:
                ahead.clear()
                return []
            messages = []
            with self._tracks_guard:
                for location, position in [ahead.popleft() for _ in range(max_count)]:
                    message = self._message_at(location)
                    if message is not None:
                        messages.append(message)
                        track.hold(message.queue_offset, MS_MAX)
                    track.position = position
                lease.store_position(track.position)
            if lease.is_open or not messages:
                return messages
            ahead.clear()
            self.give_back(*key, messages[0].queue_offset)  # the owner may have seen that they were taken
            return []

    def _poll_own(self, own: Consumer, max_count: int, timeout_s: float) -> list[StoredMessage]:
        """Poll in the owner's process. A poll that waits is parked as those of other processes, and answered as they are."""
        if not self._own_polls.is_parked:
            found = own.poll(max_count)
            if found or timeout_s <= 0:
                return found
        service = self._member.service
        assert service is not None, "an owner stays one"
        frame = self._own_polls.wait(service.groups, self.id, max_count, min(timeout_s, POLL_S))
        if frame.operation == Operation.HANDED:
            return self._handed(frame.payload)
        if self.is_closed:
            return []
        self._member.check_open()
        return self._taken(*(unpack_answer(frame) or NOTHING))

    def _handed(self, payload: bytes) -> list[StoredMessage]:
        """Read the messages that a put handed out; the queues in hand are those of the last answer."""
        messages = []
        deadline_ms = self._deadline_ms()
        with self._tracks_guard:
            for location, turn in HANDED_ROW.iter_unpack(payload):
                message = self._message_at(location)
                if message is None:
                    continue
                messages.append(message)
                key = message.topic, message.queue_id
                track = self._tracks.get(key)
                if track is None or track.turn != turn:
                    track = self._tracks[key] = _Track(turn, message.queue_offset)
                    self._done.pop(key, None)
                track.position = message.queue_offset + 1
                track.hold(message.queue_offset, deadline_ms)
        return messages

    def _taken(
        self, positions: list[int], in_hand: list[list[Any]] | None, next_ones: tuple[int, list[tuple[int, int]]] | None
    ) -> list[StoredMessage]:  # fmt: skip
        """Read the messages that the owner handed out, and note them and the queues in hand."""
        if in_hand is None:  # the poll was cancelled
            return []
        messages = [message for location in positions if (message := self._message_at(location)) is not None]
        deadline_ms = self._deadline_ms()
        with self._tracks_guard:
            before, self._tracks = self._tracks, {}
            for topic, queue_id, turn, position, *lease in in_hand:
                track = before.get((topic, queue_id))
                if track is None or track.turn != turn:
                    track = _Track(turn, position)
                track.update(self._member.leased, position, *lease)
                self._tracks[topic, queue_id] = track
                self._done.pop((topic, queue_id), None)
            self._done.update({key: track.done_before for key, track in before.items() if key not in self._tracks})
            for message in messages:
                track = self._tracks.get((message.topic, message.queue_id))
                if track is not None:
                    track.hold(message.queue_offset, deadline_ms)
        if next_ones is not None:
            self._ahead_key, self._ahead = (self.topic, next_ones[0]), deque(next_ones[1])
            self._ahead_ends = time.monotonic() + AHEAD_S
        return messages

    def _deadline_ms(self, seconds: float | None = None) -> int:
        """Return when a delivery that begins now ends: a moment later than at the owner."""
        rules = self._rules if seconds is None else DeliveryRules(seconds)
        return rules.deadline_ms(REAL_DISK.now_ms())

    # Acknowledging

    def ack(self, message: StoredMessage) -> bool:
        """Acknowledge a message, as `Consumer.ack`."""
        check_type("message", message, StoredMessage)
        location = message.topic, message.queue_id, message.queue_offset
        is_done = self._ack_leased(*location)
        if not is_done:
            is_done = bool(self._call(pack_call("consumer", self.id, "ack", *location), lambda own: own.ack(message)))
        self._forget(message)
        return is_done

    def _ack_leased(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Acknowledge a message without a request; return False if it needs one."""
        self._check()
        with self._tracks_guard:
            track = self._tracks.get((topic, queue_id))
            lease = track.lease if track is not None else None
            next_offset = track.acknowledge(queue_offset) if track is not None else 0
        if lease is None or not next_offset:
            return False
        if self._syncs:
            lease.sync()
        return lease.counts(next_offset)

    def nack(self, message: StoredMessage, *, delay_level: int = 0) -> PutResult | None:
        """Send a message back, as `Consumer.nack`."""
        check_type("message", message, StoredMessage)
        data = pack_call("consumer_nack", self.id, message.physical_offset, delay_level)
        found = self._call(data, lambda own: own.nack(message, delay_level=delay_level))
        self._forget(message)
        return unpack_packed_result(found) if isinstance(found, str) else found

    def extend(self, message: StoredMessage, seconds: float) -> bool:
        """Renew the visibility time of a message in hand, as `Consumer.extend`."""
        check_type("message", message, StoredMessage)
        location = message.topic, message.queue_id, message.queue_offset
        found = self._call(
            pack_call("consumer", self.id, "extend", *location, seconds), lambda own: own.extend(message, seconds)
        )
        with self._tracks_guard:
            track = self._tracks.get((message.topic, message.queue_id))
            if track is not None and message.queue_offset in track.held:
                if found:
                    track.held[message.queue_offset] = self._deadline_ms(seconds)
                else:
                    del track.held[message.queue_offset]
        return bool(found)

    def give_back(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Deliver again what was delivered of a queue from an offset on, as `Consumer.give_back`."""
        location = topic, queue_id, queue_offset
        self._call(pack_call("consumer", self.id, "give_back", *location), lambda own: own.give_back(*location))
        with self._tracks_guard:
            track = self._tracks.get((topic, queue_id))
            if track is not None and queue_offset in track.held:
                track.held = {offset: end for offset, end in track.held.items() if offset < queue_offset}
                track.position = queue_offset

    def commit(self, *, sync: bool = False) -> None:
        """Acknowledge everything that was handed out; with `sync` return when that is on the disk."""
        self._call(pack_call("consumer", self.id, "commit", sync), lambda own: own.commit(sync=sync))
        with self._tracks_guard:
            for track in self._tracks.values():
                track.held.clear()
                track.is_done = True

    def _forget(self, message: StoredMessage) -> None:
        """Note that a message is acknowledged."""
        with self._tracks_guard:
            track = self._tracks.get((message.topic, message.queue_id))
            if track is not None and message.queue_offset in track.held:
                del track.held[message.queue_offset]
                track.is_done = True

    def _call(self, data: bytes, own: Callable[[Consumer], Any]) -> Any:
        """Return what a method of the owner's consumer returns; open it again where the owner changed."""
        while True:
            self._check()
            consumer, channel = self._own, self._channel
            if consumer is not None:
                found = own(consumer)
                if self._member.service is not None:
                    self._member.service.groups.after_use(self.id)
                return found
            answer = self._member.request(data)
            if answer is not None:
                return answer[0]
            with self._guard:
                if self._channel is channel:
                    self._drop_channel()
                self._open()

    # Positions

    @property
    def queues(self) -> list[int]:
        """The queue ids in this consumer's hand."""
        found: list[int] = self._call(pack_call("consumer", self.id, "queues"), lambda own: own.queues)
        return found

    def position(self, queue_id: int) -> int:
        """Return the queue offset that is handed out next."""
        found: int = self._call(pack_call("consumer", self.id, "position", queue_id), lambda own: own.position(queue_id))
        return found

    def lag(self, queue_id: int | None = None) -> int:
        """Return the number of messages that are not acknowledged, of one queue or of all in hand."""
        found: int = self._call(pack_call("consumer", self.id, "lag", queue_id), lambda own: own.lag(queue_id))
        return found

    def seek(self, queue_id: int, offset: int) -> None:
        """Continue at a queue offset, as `Consumer.seek`. Nothing is committed."""
        self._call(pack_call("consumer", self.id, "seek", queue_id, offset), lambda own: own.seek(queue_id, offset))
        self._record_seek(queue_id, self.position(queue_id))

    def seek_to_time(self, timestamp_ms: int, boundary: Boundary = Boundary.LOWER) -> None:
        """Continue, in every queue in hand, at the first message stored at or after a time, as `Consumer.seek_to_time`."""
        check_type("boundary", boundary, Boundary)
        data = pack_call("consumer", self.id, "seek_to_time", timestamp_ms, boundary.name)
        self._call(data, lambda own: own.seek_to_time(timestamp_ms, boundary))
        for queue_id in self.queues:
            self._record_seek(queue_id, self.position(queue_id))

    def _record_seek(self, queue_id: int, position: int) -> None:
        with self._tracks_guard:
            track = self._tracks.get((self.topic, queue_id))
            if track is not None:
                track.held.clear()
                track.position, track.is_exact, track.is_done = position, True, False

    def close(self) -> None:
        """Leave the queues to others of the group. What was handed out and not acknowledged is delivered again."""
        if self.is_closed or self._member.is_in_child:
            return
        self.is_closed = True
        own, channel, service = self._own, self._channel, self._member.service
        if own is not None:
            own.close()
            if service is not None:
                service.groups.close(self.id)
        if channel is not None:
            self._member.try_request(pack_call("consumer", self.id, "close"))
            channel.shut_down()
        with self._guard:
            self._drop_channel()
