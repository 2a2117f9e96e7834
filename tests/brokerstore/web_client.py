"""Requests to the application of `brokerstore web`, without a socket: Starlette's own test client needs one more package."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from brokerstore.tool.body_schemas import BodySchemas
from brokerstore.web import Site, make_app

HOST = "127.0.0.1:8123"


class Answered(NamedTuple):
    """The answer of one request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A browser that opened the printed address."""

    def __init__(self, *folders: object, allow_changes: bool = False, schemas: Sequence[str] = ()) -> None:
        self.lines: list[str] = []
        paths: list[tuple[str, dict[str, Any]]] = [(str(folder), {}) for folder in folders]
        self.site = Site(paths, self.lines.append, BodySchemas(schemas), allow_changes=allow_changes)
        self.app = make_app(self.site)
        self.cookie = f"brokerstore-8123={self.site.token}"

    def get(self, address: str, **headers: str) -> Answered:
        """Send a GET request; a header of None is left out."""
        return self._send("GET", address, b"", headers)

    def post(self, address: str, form: dict[str, str], **headers: str) -> Answered:
        """Send a form, with the token of this run unless it has one."""
        return self._send("POST", address, urlencode({"form_token": self.site.form_token} | form).encode(), headers)

    def _send(self, method: str, address: str, body: bytes, headers: dict[str, str]) -> Answered:
        parts = urlsplit(address)
        pairs = {"host": HOST, "cookie": self.cookie} | {name.replace("_", "-"): value for name, value in headers.items()}
        scope = {
            "type": "http", "method": method, "path": parts.path, "raw_path": parts.path.encode(), "root_path": "",
            "query_string": parts.query.encode(), "headers": [(name.encode(), value.encode()) for name, value in pairs.items()],
            "scheme": "http", "server": ("127.0.0.1", 8123), "client": ("127.0.0.1", 1), "http_version": "1.1",
        }  # fmt: skip
        sent: list[Any] = []
        received = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            return next(received, None) or await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(self.app(scope, receive, send))
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answered(sent[0]["status"], found, b"".join(one.get("body", b"") for one in sent[1:]))
