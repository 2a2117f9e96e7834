"""The part of a broker that a replica asks, answered from a store, on the request protocol's own frames."""

from __future__ import annotations

import json
import socket
import struct
import threading
from typing import Any, Self


class FakeBroker:
    """Answers requests by code with a body; an unknown code gets the answer 3.  Written without the product's frames."""

    def __init__(self, ha_port: int = 0, log: tuple[int, int] = (0, 0), **properties: object) -> None:
        """Listen on a free port; `log` is the range of the master's log."""
        self.ha_port = ha_port
        self.log = log
        self.properties = properties
        self.bodies: dict[int, bytes] = {}
        self.requested: list[int] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._server.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while head := _exactly(connection, 4):
                frame = _exactly(connection, struct.unpack(">i", head)[0])
                size = int.from_bytes(frame[1:4], "big")
                header = json.loads(frame[4 : 4 + size])
                self.requested.append(header["code"])
                code, body = self._answer(header["code"])
                answer = json.dumps({"code": code, "flag": 1, "opaque": header["opaque"], "extFields": {}}).encode()
                connection.sendall(struct.pack(">ii", 4 + len(answer) + len(body), len(answer)) + answer + body)

    def _answer(self, code: int) -> tuple[int, bytes]:
        if code == 26:
            properties: dict[str, Any] = {"haListenPort": self.ha_port, **self.properties}
            return 0, "".join(f"{key}={value}\n" for key, value in properties.items()).encode()
        if code == 28:
            table = {"commitLogMinOffset": str(self.log[0]), "commitLogMaxOffset": str(self.log[1])}
            return 0, json.dumps({"table": table}).encode()
        return (0, self.bodies[code]) if code in self.bodies else (3, b"")


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        try:
            piece = connection.recv(size - len(data))
        except OSError:
            return b""
        if not piece:
            return b""
        data += piece
    return data
