"""Which process owns the store: the one that gets the lock. When it ends, another process takes over.

A process that is not the owner has one connection that a thread reads. It carries the pipelined puts, and ends with the owner.
That thread alone changes the role of the process: it looks for the next owner, or takes the lock, recovers the store and
serves. Requests of other threads meanwhile try again until there is an owner.

Pipelined puts that were not answered are sent to the next owner in their order, before any later one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from typing import Any, Protocol

from commitlog import Message, PutResult
from storageio import REAL_DISK, InvalidMessage, StoreBusy, StoreClosed, StoreError, StoreLocked, process_id, random_bytes
from storageio.background import BackgroundThread
from storageio.local_sockets import PeerGone, PeerSilent

from ..broker.config.ack_file import LeasedFile
from ..config import StoreConfig
from ..paths import StorePaths
from ..store import MessageStore
from ..write.progress import Progress
from ..write.put_future import PutFuture
from .answers import unpack_answer
from .client import Channels, OwnerChannel
from .owner import Owner
from .presence import Presence
from .protocol import AGAIN, FRAME_MAX, WATCH, Frame, Operation, batches, marked_again, pack_frame, parse_frame
from .service import Service

ADDRESS = "owner.socket"
RETRY_S = 0.002
RETRY_MAX_S = 0.020
ANSWER_S = 60.0
IN_FLIGHT_MAX = 1024  # pipelined puts of a process
SEND_COUNT, SEND_BYTES = 256, 1 << 20  # of one request of pipelined puts
LOG = logging.getLogger(f"brokerstore.{__name__}")


class _OpenConsumer(Protocol):
    """What a process calls of its consumers when the owner changes."""

    id: str
    is_closed: bool

    def rejoin(self) -> None: ...
    def close(self) -> None: ...


class _Rejoining:
    """A thread that opens one consumer again."""

    def __init__(self, consumer: _OpenConsumer) -> None:
        self._consumer = consumer
        self._thread = BackgroundThread("brokerstore-rejoin", self._step)
        self._thread.start()

    def _step(self) -> float | None:
        self._consumer.rejoin()
        self._thread.is_stopping = True
        return 0.0


class Member:
    """One process's part in a shared store."""

    def __init__(self, path: str, config: StoreConfig, wait_s: float) -> None:
        """Connect to the owner, or become it. Raises `StoreLocked` if neither is possible within `wait_s` seconds."""
        paths = StorePaths(path, config.store_path_commit_log)
        self.path = path
        self.local: MessageStore | None = None  # of the owner
        self.service: Service | None = None
        self.failure: Exception | None = None
        self.client_id = f"{process_id()}-{random_bytes(8).hex()}"
        self.consumers: weakref.WeakSet[_OpenConsumer] = weakref.WeakSet()
        self._config = config
        self.wait_s = wait_s or ANSWER_S
        self._lock_path = paths.lock
        self._own = paths.own
        self._address = os.path.join(paths.own, ADDRESS)
        self.leased = LeasedFile(REAL_DISK, paths.own)
        self._presence = Presence(paths.own, self.client_id)
        self._process_id = process_id()
        self._is_closed = False
        self._changes = Progress()  # of the role, and of answered puts
        self._channels = Channels(self._address, self.client_id, self.wait_s)
        self._channel: OwnerChannel | None = None
        self._owner: Owner | None = None
        self._pending: deque[tuple[bytes, PutFuture]] = deque()
        self._unsent: list[bytes] = []  # the last ones of the pending puts
        self._unsent_bytes = 0
        self._requests = 0  # sent and not answered
        self._unanswered: PutFuture | None = None  # the oldest one when the owner was silent before
        self._send_guard = threading.RLock()  # a callback of a future may put
        self._join(time.monotonic() + wait_s)
        self._watcher = BackgroundThread("brokerstore-watcher", self._watch)
        if self._channel is not None:
            self._watcher.start()

    # The role

    def _join(self, deadline: float | None) -> None:
        pause_s = RETRY_S
        while not self._try_to_join():
            if deadline is not None and time.monotonic() >= deadline:
                raise StoreLocked(f"{self.path}: another process has the store open, and does not share it or does not answer")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)
            if self._is_closed:
                return

    def _try_to_join(self) -> bool:
        """Connect to the owner, or take the lock; return False while another process has the lock and does not serve."""
        try:
            self._channel = OwnerChannel(self._address, self.client_id, self.wait_s, WATCH, self._consumer_ids())
            return True
        except PeerSilent:
            return False
        except PeerGone:
            if REAL_DISK.is_locked(self._lock_path):
                return False
        try:
            store = MessageStore.open(self.path, "a", self._config)
        except StoreLocked:
            return False
        try:
            REAL_DISK.make_folder(self._own)
            owner = Owner(store, self._address, self.client_id, self._consumer_ids())
        except BaseException:
            store.close()
            raise
        self._owner, self.local, self.service, self._channel = owner, store, owner.service, None
        owner.start()
        return True

    def _watch(self) -> float | None:
        """Take the answers to pipelined puts; when the owner ends, find the next one or become it."""
        channel = self._channel
        assert channel is not None
        try:
            for frame in channel.receive():
                self._take_answer(frame)
        except PeerGone:
            channel.close()
            if not self._is_closed:
                self._change_owner()
        except PeerSilent:
            oldest = self._pending[0][1] if self._pending else None
            if oldest is not None and oldest is self._unanswered:
                self._give_up(channel)
            self._unanswered = oldest
        except Exception as error:
            self._fail(error)
        self._watcher.is_stopping = self._is_closed or self.service is not None or self.failure is not None
        return 0.0

    def _give_up(self, channel: OwnerChannel) -> None:
        """Let the unanswered puts fail, and connect again, so that no late answer is mistaken for one to a later put."""
        with self._send_guard:
            channel.close()
            self._settle([self.busy()] * len(self._pending))
        self._change_owner()

    def _change_owner(self) -> None:
        with self._send_guard:
            try:
                self._join(None)
                self._channels.drop_idle()
                if self.service is not None:
                    LOG.info("%s: this process took over the store", self.path)
                self._repeat_pending()
                self._rejoin()
            except PeerGone:  # the next owner ended as well: the next look finds that out
                pass
            except Exception as error:
                self._fail(error)
        self._changes.notify()

    def announce(self) -> None:
        """Show a later owner that this process has consumers."""
        self._presence.announce()

    def _consumer_ids(self) -> list[str]:
        return [consumer.id for consumer in list(self.consumers) if not consumer.is_closed]

    def _rejoin(self) -> None:
        """Open the consumers of this process again, each on a thread, because each waits for all."""
        for consumer in list(self.consumers):
            _Rejoining(consumer)

    def _fail(self, error: Exception) -> None:
        """Let every call raise the error from now on."""
        LOG.error("%s: this process lost the store: %s", self.path, error)
        with self._send_guard:
            self.failure = error
            self._settle([error] * len(self._pending))

    def busy(self) -> StoreBusy:
        """Return the error of a wait for an owner that does not answer."""
        return StoreBusy(f"{self.path}: the process that owns the store has not answered for {self.wait_s:g} s")

    def _repeat_pending(self) -> None:
        """Send unanswered puts to the next owner, or carry them out here. The answers fit the socket's buffer."""
        self._requests = 0
        self._unsent.clear()
        for batch in batches([data for data, _ in self._pending], SEND_COUNT, SEND_BYTES):
            self._send(batch, AGAIN)

    def _send(self, batch: list[bytes], flags: int = 0) -> None:
        """Send puts in one request, or carry them out here."""
        data = pack_frame(Operation.PUT_EACH, b"".join(batch), flags)
        if self.service is not None:
            self._settle(unpack_answer(parse_frame(self.service.answer(parse_frame(data)))))
        elif self._channel is not None:
            self._requests += 1
            self._channel.send(data)

    def _send_unsent(self) -> None:
        batch, self._unsent, self._unsent_bytes = self._unsent, [], 0
        self._send(batch)

    # Requests

    @property
    def is_in_child(self) -> bool:
        """Whether this is a forked child of the process that connected."""
        return self._process_id != process_id()

    def check_open(self) -> None:
        """Raise `StoreClosed` after `close` and in a forked child, and the error that ended a takeover."""
        if self._is_closed or self.is_in_child:
            raise StoreClosed(f"{self.path}: the store is closed")
        if self.failure is not None:
            raise self.failure

    def request(self, data: bytes) -> Any:
        """Return what a request returned, or raise what it raised, whichever process is the owner by then."""
        deadline: float | None = None
        while True:
            self.check_open()
            seen = self._changes.count
            service = self.service
            if service is not None:
                return unpack_answer(parse_frame(service.answer(parse_frame(data))))
            try:
                return unpack_answer(self._channels.exchange(data))
            except PeerGone:
                data = marked_again(data)
                deadline = deadline or time.monotonic() + self.wait_s
                self.wait_for_owner(deadline, seen)
            except PeerSilent as error:
                raise self.busy() from error

    def try_request(self, data: bytes) -> None:
        """Make a request that does not matter where there is no owner."""
        with contextlib.suppress(StoreError):
            self._channels.exchange(data)

    @property
    def change_count(self) -> int:
        """The number of changes of the role so far, for `wait_for_owner`."""
        return self._changes.count

    def wait_for_owner(self, deadline: float, seen: int) -> None:
        """Wait before the next try to reach an owner, at most until this process changed its role since it had `seen` changes.

        The watcher looks for the owner; other threads leave the processor to the one that recovers the store. Raises
        `StoreLocked` after the deadline.
        """
        if time.monotonic() >= deadline:
            raise StoreLocked(f"{self.path}: no process serves the store")
        self._changes.wait(seen, RETRY_MAX_S)

    def new_channel(self) -> OwnerChannel:
        """Return a connection to the owner. Raises `PeerGone` without one, `StoreBusy` if it does not answer."""
        try:
            return OwnerChannel(self._address, self.client_id, self.wait_s)
        except PeerSilent as error:
            raise self.busy() from error

    # Puts of an owner for consumers of other processes

    def offer(self, message: Message, result: PutResult) -> None:
        """Hand a message that this owner put to a poll that waits for it."""
        service = self.service
        if service is not None:
            service.groups.offer([(message, result)])

    def offer_later(self, message: Message, future: PutFuture) -> None:
        """Do the same when a pipelined put is done."""
        service = self.service
        if service is not None and service.groups.is_awaited:
            if future.done() and future.exception() is None:
                service.groups.offer([(message, future.result())])
            else:
                future.add_done_callback(lambda _: service.groups.expect_dispatch())

    def expect_dispatch(self) -> None:
        """Let polls that wait have the messages that this owner put."""
        if self.service is not None:
            self.service.groups.expect_dispatch()

    @property
    def has_pending(self) -> bool:
        """Whether a pipelined put is not answered yet."""
        return bool(self._pending)

    def wait_pending(self) -> None:
        """Wait until every pipelined put is answered."""
        if not self._pending:
            return
        self.check_open()
        if not self._changes.wait_until(lambda: not self._pending, self.wait_s):
            raise self.busy()

    def submit(self, packed: bytes) -> PutFuture:
        """Send a put without waiting for its answer; wait while IN_FLIGHT_MAX others are unanswered.

        Puts that are made while a request is unanswered go together in the next one.
        """
        self.check_open()
        if len(packed) > FRAME_MAX:
            raise InvalidMessage(f"a message of {len(packed)} bytes: at most {FRAME_MAX}")
        future = PutFuture()
        if len(self._pending) >= IN_FLIGHT_MAX and not self._changes.wait_until(self._has_space, self.wait_s):
            raise self.busy()
        guard = self._send_guard  # a change of the owner holds it
        if not guard.acquire(timeout=self.wait_s):
            raise self.busy()
        try:
            self._append(packed, future)
        finally:
            guard.release()
        return future

    def _has_space(self) -> bool:
        return len(self._pending) < IN_FLIGHT_MAX or self._is_closed or self.failure is not None

    def _append(self, packed: bytes, future: PutFuture) -> None:
        """Add a put to the unanswered ones; send it unless it can wait for the answer to an earlier request."""
        if self.failure is not None:
            raise self.failure
        try:
            if self._unsent and self._unsent_bytes + len(packed) > SEND_BYTES:
                self._send_unsent()
            self._pending.append((packed, future))
            self._unsent.append(packed)
            self._unsent_bytes += len(packed)
            if not self._requests or len(self._unsent) >= SEND_COUNT:
                self._send_unsent()
        except (PeerGone, PeerSilent):  # the watcher sends it again, or gives up
            pass
        except BaseException:  # perhaps sent in part
            channel = self._channel
            if channel is not None:
                channel.shut_down()
            raise

    def _take_answer(self, frame: Frame) -> None:
        """Resolve the puts of the oldest request, and send those that were made meanwhile."""
        outcomes = unpack_answer(frame)
        with self._send_guard:
            self._requests -= 1
            if self._unsent and not self._requests:
                self._send_unsent()
        self._settle(outcomes)

    def _settle(self, outcomes: list[PutResult | Exception]) -> None:
        """Resolve the oldest unanswered puts."""
        for outcome in outcomes:
            _, future = self._pending.popleft()
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        self._changes.notify()

    # Closing

    def close(self) -> None:
        """Wait for pipelined puts, and leave; an owner stops cleanly, so another process takes over. In a child do nothing."""
        if self._is_closed or self.is_in_child:
            return
        self._changes.wait_until(lambda: not self._pending, self.wait_s)
        for consumer in list(self.consumers):
            consumer.close()
        self._presence.withdraw()
        self._is_closed = True
        channel = self._channel
        if channel is not None:
            channel.shut_down()
        self._watcher.stop()
        self._channels.close()
        if self._channel is not None:
            self._channel.close()
        if self._owner is not None:
            self._owner.close()
        if self.local is not None:
            self.local.close()
        self._changes.notify()
