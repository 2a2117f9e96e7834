"""The owner's side: a listener, and a thread for each connection.

Back-pressure: a connection's requests are answered one after the other, so a process that sends faster waits in its own `send`.
At most CONNECTIONS_MAX connections are served; further ones wait until one ends.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection

from storageio import StoreClosed, StoreError, UnsupportedFormat
from storageio.background import BackgroundThread
from storageio.local_sockets import LocalListener, LocalSocket, PeerGone, PeerSilent

from ..store import MessageStore
from ._packing_cy import BadFrame
from .answers import pack_error, pack_value
from .groups import Origin, Session
from .protocol import WATCH, Frame, FrameReader, Operation
from .service import Service

CONNECTIONS_MAX = 512
REFUSED_PAUSE_S = 0.05
SEND_S = 30.0  # a process that does not read its answers for so long loses its connection
LOG = logging.getLogger(f"brokerstore.{__name__}")


class Owner:
    """Serves a store on an address until it is closed."""

    def __init__(self, store: MessageStore, address: str, client_id: str, own_ids: Collection[str]) -> None:
        """Listen. Nobody is answered before `start`. `own_ids` are the consumers of this process."""
        self.service = Service(store, client_id, own_ids)
        self._listener = LocalListener(address)
        self._sessions: set[_Session] = set()
        self._guard = threading.Lock()
        self._acceptor = BackgroundThread("brokerstore-owner", self._accept)

    def start(self) -> None:
        """Begin to accept connections."""
        self._acceptor.start()

    def _accept(self) -> float | None:
        if len(self._sessions) >= CONNECTIONS_MAX:
            return REFUSED_PAUSE_S
        try:
            connection = self._listener.accept()
        except PeerGone:
            self._acceptor.is_stopping = True
            return 0.0
        if connection is None:
            return REFUSED_PAUSE_S
        session = _Session(self, connection)
        with self._guard:
            self._sessions.add(session)
        session.thread.start()
        return 0.0

    def forget(self, session: _Session) -> None:
        """Drop a session that ended."""
        with self._guard:
            self._sessions.discard(session)

    def close(self) -> None:
        """End all connections. A request that is being carried out is answered; the next owner answers the others."""
        self._listener.end()
        self._acceptor.stop()
        self._listener.close()
        with self._guard:
            sessions = list(self._sessions)
        for session in sessions:
            session.connection.end_input()
        self.service.end_waits()
        for session in sessions:
            session.thread.stop()
            session.connection.close()


class _Session(Session):
    """One connection of another process."""

    def __init__(self, owner: Owner, connection: LocalSocket) -> None:
        connection.limit_waits(send_s=SEND_S)
        self.connection = connection
        self.thread = BackgroundThread("brokerstore-session", self._step)
        self._owner = owner
        self._reader = FrameReader(connection)
        self._origin = Origin("", self)
        self._is_watch = False  # whether the other process ends when this connection does

    def answer(self, data: bytes) -> None:
        """Send the answer to a parked poll; the other side waits for it and sends nothing else meanwhile."""
        with contextlib.suppress(PeerGone, PeerSilent):  # the thread finds that out
            self.connection.send(data)

    def _step(self) -> float | None:
        """Answer what has arrived; end the thread with the connection."""
        try:
            answers = b"".join(self._answers(self._reader.read()))
            if answers:
                self.connection.send(answers)
            return 0.0
        except (PeerGone, PeerSilent):
            pass
        except StoreClosed:  # the other process asks the next owner
            pass
        except (BadFrame, UnsupportedFormat) as error:
            LOG.warning("a connection is closed: %s", error)
            self._report(error)
        except Exception:  # the other process must not wait for an answer that never comes
            LOG.exception("a connection is closed")
        self.thread.is_stopping = True
        groups = self._owner.service.groups
        if self._is_watch:
            groups.end_client(self._origin.client_id)
        groups.end_session(self)
        self.connection.close()
        self._owner.forget(self)
        return 0.0

    def _answers(self, frames: list[Frame]) -> list[bytes]:
        hello = []
        if frames[0].operation == Operation.HELLO:
            hello = [pack_value([])]
            client_id, *consumer_ids = frames[0].payload.decode("ascii", "replace").split(" ")
            self._origin = Origin(client_id, self)
            self._is_watch = bool(frames[0].flags & WATCH)
            if self._is_watch:
                self._owner.service.groups.expect(client_id, consumer_ids)
            frames = frames[1:]
        return hello + [self._owner.service.answer(frame, self._origin) for frame in frames]

    def _report(self, error: StoreError) -> None:
        try:
            self.connection.send(pack_error(error))
        except (PeerGone, PeerSilent):
            return
