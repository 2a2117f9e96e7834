"""The connections of a process to the owner of a store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from storageio.local_sockets import PeerSilent, connect_local

from ._packing_cy import BadFrame
from .answers import unpack_answer
from .protocol import Frame, FrameReader, Operation, pack_frame

LEAST_WAIT_S = 0.001  # 0 would set no limit
CONNECTIONS_MAX = 16  # requests of a process that wait for an answer at the same time


class OwnerChannel:
    """One connection. A thread at a time uses it, or one that sends and one that receives."""

    def __init__(self, address: str, client_id: str, answer_s: float, flags: int = 0, consumer_ids: Sequence[str] = ()) -> None:
        """Connect; let each wait for the owner raise `PeerSilent` after `answer_s` seconds.

        Raises `PeerGone` if nobody serves the address, `UnsupportedFormat` for another version of the protocol.
        """
        self._connection = connect_local(address, answer_s)
        self._answer_s = self._receive_s = answer_s
        self._reader = FrameReader(self._connection)
        try:
            hello = pack_frame(Operation.HELLO, " ".join((client_id, *consumer_ids)).encode(), flags)
            unpack_answer(self.exchange(hello))
        except BaseException:
            self.close()
            raise

    def send(self, data: bytes) -> None:
        """Send a request. Raises `PeerGone`."""
        self._connection.send(data)

    def receive(self) -> list[Frame]:
        """Wait for the next answers. Raises `PeerGone`."""
        return self._reader.read()

    def exchange(self, data: bytes) -> Frame:
        """Send a request and return its answer. Raises `PeerGone`."""
        self._connection.send(data)
        return self._answer()

    def exchange_until(self, data: bytes, timeout_s: float, cancel: bytes, is_stopped: Callable[[], bool]) -> Frame:
        """Send a request whose answer may take long; send `cancel` after the time-out, which makes the owner answer.

        So does whoever makes `is_stopped` return True, unless that was before the request was sent.
        """
        self._connection.send(data)
        if is_stopped():
            self._connection.send(cancel)
            timeout_s = self._answer_s
        self._limit_receive(timeout_s)
        try:
            return self._answer()
        except PeerSilent:
            self._limit_receive(self._answer_s)
            self._connection.send(cancel)
            return self._answer()

    def _limit_receive(self, seconds: float) -> None:
        """Limit each wait for the owner. The system does it, so an answer costs one call instead of a look and a call."""
        if seconds != self._receive_s:
            self._receive_s = seconds
            self._connection.limit_waits(send_s=self._answer_s, receive_s=max(LEAST_WAIT_S, seconds))

    def _answer(self) -> Frame:
        frames = self._reader.read()
        if len(frames) != 1:
            raise BadFrame(f"{len(frames)} answers to one request")
        return frames[0]

    @property
    def is_ended(self) -> bool:
        """Whether the owner ended. No request may be unanswered."""
        return self._connection.wait(0.0)

    def shut_down(self) -> None:
        """End the calls of other threads."""
        self._connection.shut_down()

    def close(self) -> None:
        """Close the connection to the owner."""
        self._connection.close()


class Channels:
    """Connections for requests that wait for their answers; a thread takes one for the time of a request."""

    def __init__(self, address: str, client_id: str, answer_s: float) -> None:
        """Connect at first use."""
        self._answer_s = answer_s
        self._address = address
        self._client_id = client_id
        self._idle: list[OwnerChannel] = []
        self._limit = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._is_closed = False

    def exchange(self, data: bytes) -> Frame:
        """Send a request and return its answer; wait while CONNECTIONS_MAX others do. Raises `PeerGone`."""
        with self._limit:
            channel = self._taken()
            try:
                answer = channel.exchange(data)
            except BaseException:  # the answer may still come, so the connection cannot be used again
                channel.close()
                raise
            self._idle.append(channel)
            if self._is_closed:
                self.close()
            return answer

    def _taken(self) -> OwnerChannel:
        try:
            return self._idle.pop()
        except IndexError:
            return OwnerChannel(self._address, self._client_id, self._answer_s)

    def close(self) -> None:
        """Close idle connections now and the others after their request."""
        self._is_closed = True
        self.drop_idle()

    def drop_idle(self) -> None:
        """Close the connections that no request uses."""
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                return
