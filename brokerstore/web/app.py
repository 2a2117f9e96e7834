"""The application: addresses, guards, and each view as HTML or JSON."""

from __future__ import annotations

import contextlib
import hmac
import io
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl

import click

from brokerstore.report.page import environment, meanings
from storageio import DiskError, InvalidMessage, StoreError, UnknownStore, needs_extra

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

VIEWS: dict[str, Callable[[Request, list[str]], View]] = {
    "overview": views.overview, "queues": views.queues, "groups": views.groups, "messages": views.messages,
    "message": message_view.message, "findings": views.findings, "bytes": views.file_bytes,
}  # fmt: skip
HEADERS = {  # a referrer policy without any would make a browser send `Origin: null` with a form
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff", "referrer-policy": "same-origin", "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
}  # fmt: skip
LOCAL = ("127.0.0.1", "localhost")
REFRESH_S = 3
NOTICES_MAX = 50


class Site:
    """The folders, the secrets of this run, and what it remembers of each folder."""

    def __init__(
        self, folders: list[tuple[str, dict[str, Any]]], log: Callable[[str], None], *, allow_changes: bool = False
    ) -> None:
        """Take each folder with the options that `find_target` knows; `log` writes a line about each change."""
        self.folders, self.log, self.allow_changes = folders, log, allow_changes
        self.token, self.form_token = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self.checks, self._before = Checks(), dict[int, Any]()
        for path, options in folders:
            find_target(path, options)  # raises for a folder that is none of ours

    def request(self, number: int, given: dict[str, str]) -> Request:
        """Return a request about a folder, which is identified anew: files come and go."""
        if number >= len(self.folders):
            raise NoSuchMessage(f"there is no folder {number}", "open the first page")
        return Request(number, find_target(*self.folders[number]), given, self.checks, self._before)

    def words(self, number: int) -> list[str]:
        """Return a folder as words of a command line."""
        path, options = self.folders[number]
        return [*(f"--{name}={value}" for name, value in options.items() if value), "--", path]

    def is_known(self, given: str | None) -> bool:
        """Return whether a token is that of this run."""
        return given is not None and hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


def make_app(site: Site) -> Any:
    """Return the ASGI application."""
    pages, folder = _Pages(site), "/{number:int}/"
    reads = {"/": pages.index, "/style.css": pages.style, folder: pages.view, f"{folder}body": pages.body,
             f"{folder}download": pages.download, f"{folder}change/{{name:str}}": pages.form, f"{folder}{{page:str}}": pages.view}  # fmt: skip
    writes: dict[str, Callable[[WebRequest, dict[str, str]], Response]] = {
        f"{folder}check": pages.check,
        f"{folder}change/{{name:str}}": pages.change,
    }
    routes = [Route(path, partial(pages.post, write), methods=["POST"]) for path, write in writes.items()]
    return _Guard(site, Starlette(routes=routes + [Route(path, partial(_read, handler)) for path, handler in reads.items()]))


async def _read(handler: Callable[[WebRequest], Response], request: WebRequest) -> Response:
    """Run a handler in this thread: Starlette would run a function in another one."""
    return handler(request)


class _Guard:
    """Refuses requests to another host, from another page, and without the token; adds the headers of every answer."""

    def __init__(self, site: Site, app: Any) -> None:
        self._site, self._app = site, app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        await (self._refused(WebRequest(scope)) or self._app)(scope, receive, send_guarded)

    def _refused(self, request: WebRequest) -> Response | None:
        host, headers = request.headers.get("host", ""), request.headers
        cookie = f"brokerstore-{host.rpartition(':')[2]}"
        if host.partition(":")[0] not in LOCAL:  # a name that somebody points at 127.0.0.1
            return PlainTextResponse("This page answers only to 127.0.0.1 and localhost.\n", 421)
        is_other = request.method != "GET" and headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if is_other or headers.get("origin", f"http://{host}") != f"http://{host}":
            return PlainTextResponse("A request of another page was refused.\n", 403)
        if self._site.is_known(request.query_params.get("token")) and request.method == "GET":
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
        is_only = len(self._site.folders) == 1
        return RedirectResponse("/0/", 303) if is_only else self._page("index.html", "Folders", None, {"kind": ""}, [])

    def _page(
        self, template: str, title: str, number: int | None, model: dict[str, Any], notices: list[str], status: int = 200
    ) -> Response:
        """Fill a template."""
        site, path = self._site, "" if number is None else self._site.folders[number][0]
        text = environment().get_template(template).render(
            title=title, number=number, folders=[path for path, _ in site.folders], notices=list(notices), folder=path,
            shell_folder=quote(path), changes=CHANGES, allow_changes=site.allow_changes, form_token=site.form_token,
            meanings=meanings(model["kind"]), is_store=model["kind"] != "rabbitmq", **model,
        )  # fmt: skip
        return Response(text, status, media_type="text/html")

    def _request(self, request: WebRequest) -> Request:
        return self._site.request(request.path_params["number"], dict(request.query_params))

    def view(self, request: WebRequest) -> Response:
        """Answer with a view: as HTML, as JSON, or as JSON Lines."""
        name, _, form = str(request.path_params.get("page", "overview")).partition(".")
        if name not in VIEWS or form not in ("", "json", "jsonl"):
            return PlainTextResponse("There is no such page.\n", 404)

        def answer(notices: list[str]) -> Response:
            asked = self._request(request)
            shown = VIEWS[name](asked, notices)
            if form:
                lines = shown.facts if shown.is_lines else [shown.facts]
                return Response(
                    "".join(map(json_line, lines)), media_type="application/x-ndjson" if shown.is_lines else "application/json"
                )
            page = self._page(
                shown.template, shown.title, asked.number, shown.model | {"kind": asked.target.kind.value}, notices
            )
            if shown.model.get("is_running") or asked.given.get("live") == "1":
                page.headers["refresh"] = str(REFRESH_S)
            return page

        return self._answer(request, answer, as_json=bool(form))

    def _answer(self, request: WebRequest, make: Callable[[list[str]], Response], *, as_json: bool = False) -> Response:
        """Return what a function makes, or the error with its next step; what the tool prints on stderr becomes notices."""
        notices = _Notices()
        try:
            with contextlib.redirect_stderr(notices.talk):
                return make(notices)
        except (StoreError, click.ClickException, OSError, MemoryError) as error:
            is_wrong = isinstance(error, (click.ClickException, InvalidMessage))
            status = 404 if isinstance(error, NoSuchMessage) else 400 if is_wrong else 409
            text = error.message if isinstance(error, click.ClickException) else f"{type(error).__name__}: {error}"
            if as_json:
                return Response(json_line({"error": text}), status, media_type="application/json")
            number = request.path_params["number"] if request.path_params["number"] < len(self._site.folders) else None
            path = None if number is None else self._site.folders[number][0]
            model = {
                "error": text,
                "step": after_error(error, "web", path) if isinstance(error, StoreError) else "",
                "kind": "",
            }
            # a page that tells what is wrong with a folder is a good page
            good = status == 409 and not isinstance(error, DiskError)
            return self._page("error.html", "Error", number, model, notices, 200 if good else status)

    def body(self, request: WebRequest) -> Response:
        """Download the body of one message."""
        return self._answer(request, lambda _notices: _download(iter([message_view.body(self._request(request))]), "body.bin"))

    def download(self, request: WebRequest) -> Response:
        """Download a selection as JSON Lines or Parquet, in bounded memory."""

        def answer(_notices: list[str]) -> Response:
            asked = self._request(request)
            form = "parquet" if asked.text("form") == "parquet" else "jsonl"
            filters = Filters(topic=asked.text("topic"), queue=asked.text("queue"), key=asked.text("key"))
            items = asked.open().export(form, filters, asked.number_of("limit")).items(0, 0)
            return _download((bytes(item[0]) for item in items) if form == "jsonl" else _parquet(items), f"messages.{form}")

        return self._answer(request, answer)

    async def post(self, handler: Callable[[WebRequest, dict[str, str]], Response], request: WebRequest) -> Response:
        """Run the handler of a form; refuse one that this run did not make."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > BODY_MAX:
                return PlainTextResponse("The form is too large.\n", 413)
        form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        if not hmac.compare_digest(form.get("form_token", "").encode(), self._site.form_token.encode()):
            return PlainTextResponse("The form is none of this run.\n", 403)
        return handler(request, form)

    def check(self, request: WebRequest, _form: dict[str, str]) -> Response:
        """Start `verify` and `recover`, which only read."""

        def answer(_notices: list[str]) -> Response:
            number = self._request(request).number
            self._site.checks.start(number, self._site.words(number))
            return RedirectResponse(f"/{number}/findings", 303)

        return self._answer(request, answer)

    def form(self, request: WebRequest) -> Response:
        """Show the form of a change."""
        return self.change(request, dict(request.query_params) | {"apply": ""}, is_empty=True)

    def change(self, request: WebRequest, form: dict[str, str], *, is_empty: bool = False) -> Response:
        """Show what a change does; with `apply` do it, and log it."""
        name, apply = request.path_params["name"], form.get("apply") == "1"
        if not self._site.allow_changes or name not in CHANGES:
            return PlainTextResponse("Changes need `brokerstore web --allow-changes`.\n", 403)

        def answer(notices: list[str]) -> Response:
            asked, change, found = self._request(request), CHANGES[name], None
            if asked.target.kind.value == "rabbitmq":
                raise UnknownStore(f"{asked.target.path}: a RabbitMQ folder; its server has a page for changes")
            if not is_empty:
                given = values(change, form)
                found = change.run(asked.open(), given, apply)
                if apply:
                    self._site.checks.forget(asked.number)
                    self._site.log(f"brokerstore: {asked.target.path}: {name} {given}: {found.facts}")
            model = {"change": change, "given": form, "answer": found, "applied": apply, "kind": asked.target.kind.value}
            return self._page("change.html", change.title, asked.number, model, notices)

        return self._answer(request, answer)


class _Notices(list[str]):
    """The notices of a page: its own, and what the tool printed on stderr before they are shown."""

    def __init__(self) -> None:
        super().__init__()
        self.talk = io.StringIO()

    def __iter__(self) -> Iterator[str]:
        yield from super().__iter__()
        yield from (line.removeprefix("brokerstore: ") for line in self.talk.getvalue().splitlines()[:NOTICES_MAX])


def _download(blocks: Iterator[bytes], name: str) -> Response:
    """Return blocks as a file, each read in this thread: Starlette would read an ordinary iterator in another one."""

    async def one_by_one() -> AsyncIterator[bytes]:
        while True:
            with contextlib.redirect_stderr(io.StringIO()):
                block = next(blocks, None)
            if block is None:
                return
            yield block

    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(one_by_one(), media_type="application/octet-stream", headers=headers)


class _Sink(io.BytesIO):
    """A file of which only what was not sent yet is held."""

    sent = 0

    def tell(self) -> int:
        return self.sent + super().tell()

    def take(self) -> bytes:
        """Return what was written since the last call."""
        found = self.getvalue()
        self.sent += len(found)
        self.seek(0)
        self.truncate()
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
