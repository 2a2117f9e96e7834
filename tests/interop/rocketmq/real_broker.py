"""The real name server and broker in one JVM (`java/Broker.java`), and real clients in another (`java/Client.java`).

Everything listens on 127.0.0.1, on free ports, and uses folders that the test gives.  A broker takes about five seconds to
start and five to stop cleanly; SIGKILL ends it immediately.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.serving import free_ports

from .jvm import VERSION, Jvm

NAME = "interop-a"
CLUSTER = "interop"
PATIENT_MS = 60_000
POLL_S = 0.1
BROKER_HEAP, CLIENT_HEAP = "384m", "256m"

# No request may fail because the machine is slow, and no file may be deleted during a test.
CALM = {
    "waitTimeMillsInSendQueue": PATIENT_MS,
    "waitTimeMillsInPullQueue": PATIENT_MS,
    "waitTimeMillsInHeartbeatQueue": PATIENT_MS,
    "waitTimeMillsInTransactionQueue": PATIENT_MS,
    "osPageCacheBusyTimeOutMills": PATIENT_MS,
    "fileReservedTime": 24 * 365 * 50,
    "cleanFileForciblyEnable": False,
    "diskMaxUsedSpaceRatio": 95,
    "autoCreateTopicEnable": False,
}


def until(is_so: Callable[[], bool], what: str, patience_s: float = PATIENT_MS / 1000) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(POLL_S)


def client(names: str, broker: str, scratch: Path, *, broker_name: str = NAME, **jvm: Any) -> Jvm:
    """Start a JVM of clients; its first answer comes when it is ready."""
    return Jvm("Client", [names, broker, broker_name], scratch / "client.stderr", **({"heap": CLIENT_HEAP} | jvm))


class RealBroker:
    """A running name server and broker on a store's folder, with clients.  Leaving the context kills what still runs."""

    def __init__(
        self, store: Path, scratch: Path, *, port: int | None = None, jvm: dict[str, Any] | None = None,
        version: str = VERSION, **settings: Any,
    ) -> None:  # fmt: skip
        """Start the processes; `scratch` gets configuration and logs; `port` is the broker's, if a test needs to know it.

        `jvm` has heap and options of both JVMs; by default they are small. `version` is the broker's.
        """
        self._jvm = jvm or {}
        self._version = version
        names_port, high_availability_port, free = free_ports(3)
        self.port = port or free
        scratch.mkdir(parents=True, exist_ok=True)
        reported: dict[str, Any] = {
            "brokerClusterName": CLUSTER,
            "brokerName": NAME,
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "listenPort": self.port,
            "haListenPort": high_availability_port,
            "namesrvAddr": f"127.0.0.1:{names_port}",
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
        }
        self.conf = scratch / "broker.conf"
        self.conf.write_text("".join(f"{name}={_value(value)}\n" for name, value in (reported | CALM | settings).items()))
        self.store = store
        self._scratch, self._names_port = scratch, names_port
        self.server = self._start()
        try:
            own = {"version": version if version >= VERSION else VERSION} | self._jvm
            self.clients = client(f"127.0.0.1:{names_port}", f"127.0.0.1:{self.port}", scratch, **own)
            self.started = self.server.answer()
            self.clients.answer()
        except BaseException:
            self.end()
            raise

    def invoke(self, do: str, **arguments: Any) -> Any:
        """Send a command to the clients and return the answer."""
        return self.clients.invoke(do, **arguments)

    def _start(self) -> Jvm:
        arguments = [str(self._names_port), str(self.conf)]
        own = {"heap": BROKER_HEAP, "version": self._version} | self._jvm
        return Jvm("Broker", arguments, self._scratch / "broker.stderr", **own)

    def restart(self) -> None:
        """Kill the broker with SIGKILL and start it again; its clients stay."""
        self.server.end()
        self.server = self._start()
        self.server.answer()

    def stop(self) -> None:
        """Stop the clients, then the broker cleanly."""
        self.clients.end()
        self.server.stop()

    def kill(self) -> None:
        """Send SIGKILL to the broker."""
        self.server.kill()

    def end(self) -> None:
        """Kill everything that still runs."""
        self.server.end()
        if hasattr(self, "clients"):
            self.clients.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
