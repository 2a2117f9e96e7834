"""The application: addresses, guards, and each view as HTML or JSON."""

from __future__ import annotations

import contextlib
import hmac
import io
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import click

from brokerstore.report.page import environment, meanings
from storageio import DiskError, InvalidMessage, StoreError, needs_extra

from ..tool.escapes import quote
from ..tool.filters import Filters
from ..tool.hints import NoSuchMessage, after_error
from ..tool.output import json_line
from ..tool.target import find_target
from . import message_view, views
from .changes import BODY_MAX, CHANGES, values
from .checks import Checks
from .views import Request, View

with needs_extra("web"):
    from starlette.applications import Starlette
    from starlette.requests import Request as WebRequest
    from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
    from starlette.routing import Route

Handler = Callable[[WebRequest], Response]
VIEWS: dict[str, Callable[[Request, list[str]], View]] = {
    "overview": views.overview, "queues": views.queues, "groups": views.groups, "messages": views.messages,
    "message": message_view.message, "findings": views.findings, "bytes": views.file_bytes,
}  # fmt: skip
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
}  # fmt: skip
LOCAL = ("127.0.0.1", "localhost")
REFRESH_S = 3


class Site:
    """The folders, the secrets of this run, and what it remembers of each folder."""

    def __init__(
        self, folders: list[tuple[str, dict[str, Any]]], log: Callable[[str], None], *, allow_changes: bool = False
    ) -> None:
        """Take each folder with the options that `find_target` knows; `log` writes a line about each change."""
        self.folders, self.log, self.allow_changes = folders, log, allow_changes
        self.token, self.form_token = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self.checks = Checks()
        self._before: dict[int, Any] = {}
        for path, options in folders:
            find_target(path, options)  # raises for a folder that is none of ours

    def request(self, number: int, given: dict[str, str]) -> Request:
        """Return a request about a folder, which is identified anew: files come and go."""
        return Request(number, find_target(*self.folders[number]), given, self.checks, self._before)

    def words(self, number: int) -> list[str]:
        """Return a folder as words of a command line."""
        path, options = self.folders[number]
        return [path, *(f"--{name}={value}" for name, value in options.items() if value)]

    def is_known(self, given: str | None) -> bool:
        """Return whether a token is that of this run."""
        return given is not None and hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


def make_app(site: Site) -> Any:
    """Return the ASGI application."""
    pages = _Pages(site)
    page = "/{number:int}/{page:str}"
    routes = [
        Route("/", _endpoint(pages.index)), Route("/style.css", _endpoint(pages.style)),
        Route("/{number:int}/", _endpoint(pages.view)), Route("/{number:int}/body", _endpoint(pages.body)),
        Route("/{number:int}/download", _endpoint(pages.download)),
        Route("/{number:int}/check", pages.post(pages.check), methods=["POST"]),
        Route("/{number:int}/change/{name:str}", _endpoint(pages.form)),
        Route("/{number:int}/change/{name:str}", pages.post(pages.change), methods=["POST"]),
        Route(page, _endpoint(pages.view)),
    ]  # fmt: skip
    return _Guard(site, Starlette(routes=routes))


def _endpoint(handler: Handler) -> Any:
    """Return a handler as a coroutine: Starlette would run a function in a thread."""

    async def run(request: WebRequest) -> Response:
        return handler(request)

    return run


class _Guard:
    """Refuses requests to another host, from another page, and without the token; adds the headers of every answer."""

    def __init__(self, site: Site, app: Any) -> None:
        self._site, self._app = site, app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        request = WebRequest(scope)
        refused = self._refused(request)

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in names]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        await (self._app if refused is None else refused)(scope, receive, send_guarded)

    def _refused(self, request: WebRequest) -> Response | None:
        host = request.headers.get("host", "")
        cookie = f"brokerstore-{host.rpartition(':')[2]}"
        if urlsplit(f"//{host}").hostname not in LOCAL:  # a name that an attacker points at 127.0.0.1
            return PlainTextResponse("This page answers only to 127.0.0.1 and localhost.\n", 421)
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and request.method != "GET":
            return PlainTextResponse("A form of another page was refused.\n", 403)
        origin = request.headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return PlainTextResponse("A request of another page was refused.\n", 403)
        given = request.query_params.get("token")
        if self._site.is_known(given) and request.method == "GET":
            answer = RedirectResponse(request.url.path, 303)
            answer.set_cookie(cookie, self._site.token, httponly=True, samesite="strict", path="/")
            return answer
        if not self._site.is_known(request.cookies.get(cookie)):
            return PlainTextResponse("Open the address that `brokerstore web` printed: it has the token.\n", 403)
        return None


class _Pages:
    """The handlers."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def style(self, _request: WebRequest) -> Response:
        """Return the style sheet, which is the one of `report`."""
        text = resources.files("brokerstore.report").joinpath("templates", "style.css").read_text(encoding="utf-8")
        return Response(text, media_type="text/css")

    def index(self, _request: WebRequest) -> Response:
        """List the folders, or show the only one."""
        if len(self._site.folders) == 1:
            return RedirectResponse("/0/", 303)
        return Response(self._render("index.html", "Folders", None, {}, []), media_type="text/html")

    def _render(self, template: str, title: str, number: int | None, model: dict[str, Any], notices: list[str]) -> str:
        names = [
            " ".join([path, *([f"({options['vhost']})"] if options.get("vhost") else [])])
            for path, options in self._site.folders
        ]
        path = "" if number is None else self._site.folders[number][0]
        text: str = environment().get_template(template).render(
            title=title, number=number, folders=names, notices=notices, folder=path, shell_folder=quote(path), changes=CHANGES,
            allow_changes=self._site.allow_changes, form_token=self._site.form_token, meanings=meanings(model.get("kind", "")), **model,
        )  # fmt: skip
        return text

    def _request(self, request: WebRequest) -> Request:
        number = request.path_params["number"]
        if number >= len(self._site.folders):
            raise NoSuchMessage(f"there is no folder {number}", "open the first page")
        return self._site.request(number, dict(request.query_params))

    def view(self, request: WebRequest) -> Response:
        """Answer with a view: as HTML, as JSON, or as JSON Lines."""
        name, _, form = str(request.path_params.get("page", "overview")).partition(".")
        make = VIEWS.get(name)
        if make is None or form not in ("", "json", "jsonl"):
            return PlainTextResponse("There is no such page.\n", 404)

        def found(notices: list[str]) -> Response:
            asked = self._request(request)
            shown = make(asked, notices)
            if form:
                lines = shown.facts if shown.is_lines else [shown.facts]
                kind = "application/json" if form == "json" and not shown.is_lines else "application/x-ndjson"
                return Response("".join(map(json_line, lines)), media_type=kind)
            model = shown.model | {"kind": asked.target.kind.value, "is_store": asked.target.kind.value != "rabbitmq"}
            answer = Response(self._render(shown.template, shown.title, asked.number, model, notices), media_type="text/html")
            if model.get("is_running") or asked.given.get("live") == "1":
                answer.headers["refresh"] = str(REFRESH_S)
            return answer

        return self._answer(request, found, as_json=bool(form))

    def _answer(self, request: WebRequest, make: Callable[[list[str]], Response], *, as_json: bool = False) -> Response:
        """Return what a function makes, or the error with its next step; what the tool prints on stderr becomes notices."""
        talk, notices = io.StringIO(), _Notices()
        notices.talk = talk
        try:
            with contextlib.redirect_stderr(talk):
                return make(notices)
        except (StoreError, click.ClickException, OSError, MemoryError) as error:
            code = (
                404
                if isinstance(error, NoSuchMessage)
                else 400
                if isinstance(error, (click.ClickException, InvalidMessage))
                else 409
            )
            text = error.message if isinstance(error, click.ClickException) else f"{type(error).__name__}: {error}"
            if as_json:
                return Response(json_line({"error": text}), code, media_type="application/json")
            number = request.path_params.get("number", 0)
            number = number if number < len(self._site.folders) else None
            step = (
                after_error(error, "web", None if number is None else self._site.folders[number][0])
                if isinstance(error, StoreError)
                else ""
            )
            model = {"error": text, "step": step, "kind": "", "is_store": True}
            # a page that shows what is wrong with a folder is a good page
            status = 500 if isinstance(error, DiskError) else code if code != 409 else 200
            return Response(self._render("error.html", "Error", number, model, notices), status, media_type="text/html")

    def body(self, request: WebRequest) -> Response:
        """Download the body of one message."""
        return self._answer(request, lambda _notices: _file(message_view.body(self._request(request)), "body.bin"))

    def download(self, request: WebRequest) -> Response:
        """Download a selection as JSON Lines or Parquet, in bounded memory."""

        def found(_notices: list[str]) -> Response:
            asked = self._request(request)
            form = "parquet" if asked.text("form") == "parquet" else "jsonl"
            filters = Filters(topic=asked.text("topic"), queue=asked.text("queue"), key=asked.text("key"))
            source = asked.open().export(form, filters, asked.number_of("limit"))
            blocks = (bytes(item[0]) for item in source.items(0, 0)) if form == "jsonl" else _parquet(source.items(0, 0))
            headers = {"content-disposition": f'attachment; filename="messages.{form}"'}
            return StreamingResponse(_one_by_one(blocks), media_type="application/octet-stream", headers=headers)

        return self._answer(request, found)

    def post(self, handler: Callable[[WebRequest, dict[str, str]], Response]) -> Any:
        """Return a handler of a form, which refuses one that this run did not make."""

        async def run(request: WebRequest) -> Response:
            body = bytearray()
            async for part in request.stream():
                body += part
                if len(body) > BODY_MAX:
                    return PlainTextResponse("The form is too large.\n", 413)
            form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
            if not hmac.compare_digest(form.get("form_token", "").encode(), self._site.form_token.encode()):
                return PlainTextResponse("The form is none of this run.\n", 403)
            return handler(request, form)

        return run

    def check(self, request: WebRequest, _form: dict[str, str]) -> Response:
        """Start `verify` and `recover`, which only read."""

        def found(_notices: list[str]) -> Response:
            number = self._request(request).number
            self._site.checks.start(number, self._site.words(number))
            return RedirectResponse(f"/{number}/findings", 303)

        return self._answer(request, found)

    def form(self, request: WebRequest) -> Response:
        """Show the form of a change."""
        return self._change(request, dict(request.query_params), lambda _asked: None)

    def change(self, request: WebRequest, form: dict[str, str]) -> Response:
        """Show what a change does; with `apply` do it."""
        apply = form.get("apply") == "1"
        name = request.path_params["name"]

        def run(asked: Request) -> Any:
            change = CHANGES[name]
            given = values(change, form)
            answer = change.run(asked.open(), given, apply)
            if apply:
                self._site.checks.forget(asked.number)
                self._site.log(f"{asked.target.path}: {name} {given}: {answer.facts}")
            return answer

        return self._change(request, form, run, applied=apply)

    def _change(
        self, request: WebRequest, form: dict[str, str], run: Callable[[Request], Any], *, applied: bool = False
    ) -> Response:  # fmt: skip
        name = request.path_params["name"]
        if not self._site.allow_changes or name not in CHANGES:
            return PlainTextResponse("Changes need `brokerstore web --allow-changes`.\n", 403)

        def found(notices: list[str]) -> Response:
            asked = self._request(request)
            answer = run(asked)
            model = {"name": name, "change": CHANGES[name], "given": form, "answer": answer, "applied": applied,
                     "kind": asked.target.kind.value, "is_store": True}  # fmt: skip
            page = self._render("change.html", CHANGES[name].title, asked.number, model, notices)
            return Response(page, media_type="text/html")

        return self._answer(request, found)


class _Notices(list[str]):
    """The notices of a page: its own, and what the tool printed on stderr until it is shown."""

    talk: io.StringIO

    def __iter__(self) -> Iterator[str]:
        yield from super().__iter__()
        yield from (line.removeprefix("brokerstore: ") for line in self.talk.getvalue().splitlines()[:50])


async def _one_by_one(blocks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield blocks in this thread: Starlette would read an ordinary iterator in another one."""
    with contextlib.redirect_stderr(io.StringIO()):
        for block in blocks:
            yield block


class _Sink(io.RawIOBase):
    """Takes what a writer writes, until it is sent."""

    def __init__(self) -> None:
        self.taken, self._at = bytearray(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.taken += data
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at

    def take(self) -> bytes:
        """Return what was written since the last call."""
        found = bytes(self.taken)
        self.taken.clear()
        return found


def _parquet(items: Iterator[Any]) -> Iterator[bytes]:
    """Yield a Parquet file, one batch at a time."""
    with needs_extra("arrow"):
        import pyarrow as pa
        from pyarrow import parquet

    sink, writer = _Sink(), None
    for batch, *_ in items:
        writer = parquet.ParquetWriter(pa.PythonFile(sink, "w"), batch.schema) if writer is None else writer
        if batch.num_rows:
            writer.write_batch(batch)
        yield sink.take()
    if writer is not None:
        writer.close()
    yield sink.take()


def _file(data: bytes, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(data, media_type="application/octet-stream", headers=headers)
