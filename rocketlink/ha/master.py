"""Serve the log of a store to slaves: replicas of ours, or real brokers with `brokerRole=SLAVE`."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from messagestore import MessageStore
from storageio import Closing, StoreClosed, StoreError
from storageio.background import BackgroundThread
from storageio.local_sockets import LocalSocket, PeerGone
from storageio.tcp_sockets import TcpListener

from ..errors import WrongFrame
from ..remoting.client import RemotingClient
from ..remoting.codes import EXCHANGE_BROKER_HA_INFO
from .frames import HEADER, REPORT_EVERY_S, SILENCE_S, ReportReader

LOG = logging.getLogger(f"brokerstore.{__name__}")
TRANSFER_SIZE = 1 << 18  # bytes of one frame; a real slave takes 4 MiB
WAIT_S = 0.02  # for the next append, until the reports of a slave are read
SLAVES_MAX = 64
RECEIVE_SIZE = 4096


class SlaveStatus(NamedTuple):
    """One connected slave, by physical offsets: what it reported, and what was sent to it."""

    reported: int
    sent: int
    host: str = ""


class HaMaster(Closing):
    """Listens for slaves until it is closed.  Bytes are sent as soon as the files have them, synced or not, as by RocketMQ."""

    def __init__(
        self, store: MessageStore, host: str = "127.0.0.1", port: int = 0, *, admits: Callable[[str], bool] | None = None
    ) -> None:  # fmt: skip
        """Serve a store that is open for writing; port 0 takes a free one.  Raises `DiskError` for a port that is taken.

        `admits` decides which hosts may read the log; by default all may that can reach the port.
        """
        self._admits = admits
        store.engine.check_open()
        self._store = store
        self._listener = TcpListener(host, port)
        self.host, self.port = host, self._listener.port
        self._slaves: list[_Slave] = []
        self._guard = threading.Lock()
        self._acceptor = BackgroundThread("brokerstore-ha-accept", self._accept)
        self._acceptor.start()

    @property
    def slaves(self) -> list[SlaveStatus]:
        """The slaves that have sent a first report."""
        return [SlaveStatus(one.reported, one.sent, one.host) for one in self._living() if one.reported is not None]

    def invite(self, host: str, port: int, *, broker_port: int | None = None) -> None:
        """Tell a real slave, by the port that its broker listens on, to follow this master.

        `broker_port` is where the slave may ask for topics, groups and offsets.  Raises `PeerGone` or `RemoteError`.
        """
        fields = {"masterHaAddress": f"{self.host}:{self.port}", "masterAddress": f"{self.host}:{broker_port or self.port}"}
        with RemotingClient(host, port) as client:
            client.invoke(EXCHANGE_BROKER_HA_INFO, fields)

    def close(self) -> None:
        """Close all connections and the port.  The store stays open."""
        self._acceptor.is_stopping = True
        self._listener.end()
        self._acceptor.stop()
        for slave in self._living():
            slave.close()

    def _living(self) -> list[_Slave]:
        with self._guard:
            self._slaves = [slave for slave in self._slaves if not slave.is_ended]
            return list(self._slaves)

    def _accept(self) -> float | None:
        """Serve the next slave in a thread of its own."""
        with contextlib.suppress(PeerGone):
            link = self._listener.accept()
            if link is None:
                return 0.0
            if self._admits is not None and not self._admits(link.peer_host):
                LOG.warning("a slave at %s was refused: it has not signed a request", link.peer_host)
                link.close()
                return 0.0
            if len(self._living()) >= SLAVES_MAX:
                LOG.warning("a slave was refused: %d are connected", SLAVES_MAX)
                link.close()
                return 0.0
            slave = _Slave(self._store, link)
            with self._guard:
                self._slaves.append(slave)
            slave.start()
        return 0.0


class _Slave:
    """One connection, served by one thread."""

    def __init__(self, store: MessageStore, link: LocalSocket) -> None:
        self._engine = store.engine
        self._link = link
        self.host = link.peer_host
        self._reports = ReportReader()
        self._thread = BackgroundThread("brokerstore-ha-slave", self._serve)
        self.reported: int | None = None
        self.sent = 0
        self.is_ended = False

    def start(self) -> None:
        """Start the thread that serves it."""
        self._thread.start()

    def close(self) -> None:
        """End the connection and the thread."""
        self._thread.is_stopping = True
        self._link.shut_down()
        self._thread.stop()

    def _serve(self) -> float | None:
        """Serve the slave until one side ends the connection."""
        try:
            self._send_all()
        except StoreClosed:
            pass
        except (PeerGone, WrongFrame) as error:
            LOG.info("a slave is gone: %s", error)
        except StoreError as error:
            LOG.error("a slave is served no more: %s", error)
        finally:
            self.is_ended = True
            self._link.shut_down()
            self._link.close()
            self._thread.is_stopping = True
        return None

    def _send_all(self) -> None:
        """Send log bytes as they are written, and a heartbeat when nothing was sent for a while."""
        heard_s = sent_s = time.monotonic()
        while not self._thread.is_stopping:
            seen = self._engine.progress.count
            if self._link.wait(0.0) and self._take_report():
                heard_s = time.monotonic()
            now_s = time.monotonic()
            if now_s - heard_s > SILENCE_S:
                raise PeerGone(f"no report for {SILENCE_S:g} s")
            data = self._next_bytes() if self.reported is not None else b""
            if data or (self.reported is not None and now_s - sent_s > REPORT_EVERY_S):
                self._link.send(HEADER.pack(self.sent, len(data)) + data)
                self.sent += len(data)
                sent_s = now_s
            else:
                self._engine.check_open()
                self._engine.progress.wait(seen, WAIT_S)

    def _take_report(self) -> bool:
        """Take what the slave sent; the first report decides where the stream begins."""
        report = self._reports.feed(self._link.receive(RECEIVE_SIZE))
        if report is None:
            return False
        if report < 0:
            raise WrongFrame(f"a slave reported the end {report}: not negative")
        if self.reported is None:
            self.sent = report or self._last_file()
        self.reported = report
        return True

    def _last_file(self) -> int:
        """Return where a slave without a log begins."""
        files = self._engine.log.queue.files
        return files[-1].start_offset if files else 0

    def _next_bytes(self) -> bytes:
        """Return what follows in the log file, with the bytes behind a blank: a slave counts them too."""
        log = self._engine.log
        end = log.committed_offset  # a pool's file has zeros behind it
        file = log.queue.find(self.sent) if self.sent < end else None
        if file is None:
            return b""
        at = self.sent - file.start_offset
        return bytes(log.queue.view(file)[at : min(at + TRANSFER_SIZE, file.size_bytes, end - file.start_offset)])
