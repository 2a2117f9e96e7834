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

from ..tool.body_schemas import BodySchemas
from ..tool.escapes import quote
from ..tool.filters import Filters
from ..tool.hints import NoSuchMessage, after_error
from ..tool.output import json_line
from ..tool.target import find_target
from . import message_view, views
from .changes import BODY_MAX, CHANGES, values
from .checks import VERBS, Check
from .views import Request, View

with needs_extra("web"):
    from starlette.applications import Starlette
    from starlette.requests import Request as WebRequest
    from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
    from starlette.routing import Route

Form = dict[str, str] | None
Handler = Callable[[WebRequest, Form], Response]
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
        self, folders: list[tuple[str, dict[str, Any]]], log: Callable[[str], None], schemas: BodySchemas | None = None, *,
        allow_changes: bool = False,
    ) -> None:  # fmt: skip
        """Take each folder with the options that `find_target` knows; `log` writes a line about each change."""
        self.folders, self.log, self.allow_changes, self.schemas = folders, log, allow_changes, schemas or BodySchemas()
        self.token, self.form_token = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self.checks, self._before = dict[int, dict[str, Check]](), dict[int, Any]()
        for path, options in folders:
            find_target(path, options)  # raises for a folder that is none of ours

    def request(self, number: int, given: dict[str, str]) -> Request:
        """Return a request about a folder, which is identified anew: files come and go."""
        if number >= len(self.folders):
            raise NoSuchMessage(f"there is no folder {number}", "open the first page")
        return Request(
            number, find_target(*self.folders[number]), given, self.checks.get(number, {}), self._before, self.schemas
        )

    def check(self, number: int) -> None:
        """Start `verify` and `recover` of a folder, which only read, unless they run."""
        if not any(check.is_running for check in self.checks.get(number, {}).values()):
            self.forget(number)
            path, options = self.folders[number]
            words = [*(f"--{name}={value}" for name, value in options.items() if value), "--", path]
            self.checks[number] = {verb: Check(verb, words) for verb in VERBS}

    def forget(self, number: int | None = None) -> None:
        """End the checks of a folder, which a change makes outdated, or of all folders."""
        for one in list(self.checks) if number is None else [number]:
            for check in self.checks.pop(one, {}).values():
                check.stop()

    def is_known(self, given: str | None) -> bool:
        """Return whether a token is that of this run."""
        return given is not None and hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


def make_app(site: Site) -> Any:
    """Return the ASGI application."""
    pages, folder = _Pages(site), "/{number:int}/"
    change = f"{folder}change/{{name:str}}"
    reads = {"/": pages.index, "/style.css": pages.style, folder: pages.view, f"{folder}body": pages.body,
             f"{folder}download": pages.download, change: pages.change, f"{folder}{{page:str}}": pages.view}  # fmt: skip
    writes = {f"{folder}check": pages.check, change: pages.change}
    routes = [Route(path, partial(pages.post, handler), methods=["POST"]) for path, handler in writes.items()]
    return _Guard(
        site, Starlette(routes=routes + [Route(path, partial(pages.get, handler)) for path, handler in reads.items()])
    )


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
    """The handlers of all addresses; coroutines, because Starlette would run a function in another thread."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._talk = io.StringIO()  # what the tool prints on stderr while it makes a page

    async def get(self, handler: Handler, request: WebRequest) -> Response:
        """Answer a request that changes nothing."""
        return self._answer(handler, request, None)

    async def post(self, handler: Handler, request: WebRequest) -> Response:
        """Answer a form; refuse one that this run did not make."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > BODY_MAX:
                return PlainTextResponse("The form is too large.\n", 413)
        form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        if not hmac.compare_digest(form.get("form_token", "").encode(), self._site.form_token.encode()):
            return PlainTextResponse("The form is none of this run.\n", 403)
        return self._answer(handler, request, form)

    def _answer(self, handler: Handler, request: WebRequest, form: Form) -> Response:
        """Return what a handler makes, or the error with its next step."""
        self._talk = io.StringIO()
        try:
            with contextlib.redirect_stderr(self._talk):
                return handler(request, form)
        except (StoreError, click.ClickException, OSError, MemoryError) as error:
            is_wrong = isinstance(error, (click.ClickException, InvalidMessage))
            status = 404 if isinstance(error, NoSuchMessage) else 400 if is_wrong else 409
            text = error.message if isinstance(error, click.ClickException) else f"{type(error).__name__}: {error}"
            if "." in request.path_params.get("page", ""):
                return Response(json_line({"error": text}), status, media_type="application/json")
            number = request.path_params.get("number", len(self._site.folders))
            path = self._site.folders[number][0] if number < len(self._site.folders) else None
            step = after_error(error, "web", path) if isinstance(error, StoreError) else ""
            # a page that tells what is wrong with a folder is a good page
            is_good = status == 409 and not isinstance(error, DiskError)
            model = {"error": text, "answer": [step] if step else [], "kind": "", "status": 200 if is_good else status}
            return self._page(View("answer.html", "Error", model, None), None if path is None else number, [])

    def _page(self, shown: View, number: int | None, notices: list[str]) -> Response:
        """Return a view as HTML."""
        site, path = self._site, "" if number is None else self._site.folders[number][0]
        talk = [line.removeprefix("brokerstore: ") for line in self._talk.getvalue().splitlines()[:NOTICES_MAX]]
        text = environment().get_template(shown.template).render(
            title=shown.title, number=number, folders=[path for path, _ in site.folders], folder=path, shell_folder=quote(path),
            notices=list(dict.fromkeys(notices + talk)), changes=CHANGES, allow_changes=site.allow_changes,
            form_token=site.form_token, meanings=meanings(shown.model["kind"]), is_store=shown.model["kind"] != "rabbitmq",
            **shown.model,
        )  # fmt: skip
        return Response(text, shown.model.get("status", 200), media_type="text/html")

    def _query(self, request: WebRequest) -> Request:
        return self._site.request(request.path_params["number"], dict(request.query_params))

    def style(self, _request: WebRequest, _form: Form) -> Response:
        """Return the style sheet, which is the one of `report`."""
        text = resources.files("brokerstore.report").joinpath("templates", "style.css").read_text(encoding="utf-8")
        return Response(text, media_type="text/css")

    def index(self, _request: WebRequest, _form: Form) -> Response:
        """List the folders, or show the only one."""
        if len(self._site.folders) == 1:
            return RedirectResponse("/0/", 303)
        return self._page(View("answer.html", "Folders", {"kind": "", "answer": [], "error": ""}, None), None, [])

    def view(self, request: WebRequest, _form: Form) -> Response:
        """Answer with a view: as HTML, as JSON, or as JSON Lines."""
        name, _, form = str(request.path_params.get("page", "overview")).partition(".")
        if name not in VIEWS or form not in ("", "json", "jsonl"):
            return PlainTextResponse("There is no such page.\n", 404)
        query, notices = self._query(request), list[str]()
        shown = VIEWS[name](query, notices)
        if form:
            lines = shown.facts if shown.is_lines else [shown.facts]
            kind = "application/x-ndjson" if shown.is_lines else "application/json"
            return Response("".join(map(json_line, lines)), media_type=kind)
        shown.model["kind"] = query.target.kind.value
        page = self._page(shown, query.number, notices)
        if shown.model.get("is_running") or query.given.get("live") == "1":
            page.headers["refresh"] = str(REFRESH_S)
        return page

    def body(self, request: WebRequest, _form: Form) -> Response:
        """Download the body of one message."""
        return _download(iter([message_view.body(self._query(request))]), "body.bin")

    def download(self, request: WebRequest, _form: Form) -> Response:
        """Download a selection as JSON Lines or Parquet, in bounded memory."""
        query = self._query(request)
        form = "parquet" if query.text("form") == "parquet" else "jsonl"
        filters = Filters(topic=query.text("topic"), queue=query.text("queue"), key=query.text("key"))
        items = query.open().export(form, filters, query.number_of("limit")).items(0, 0)
        return _download((bytes(item[0]) for item in items) if form == "jsonl" else _parquet(items), f"messages.{form}")

    def check(self, request: WebRequest, _form: Form) -> Response:
        """Start the checks of a folder."""
        number = self._query(request).number
        self._site.check(number)
        return RedirectResponse(f"/{number}/findings", 303)

    def change(self, request: WebRequest, form: Form) -> Response:
        """Show the form of a change; of a form that was filled what it does; with `apply` do it, and log it."""
        name, query, found = request.path_params["name"], self._query(request), None
        if not self._site.allow_changes or name not in CHANGES:
            return PlainTextResponse("Changes need `brokerstore web --allow-changes`.\n", 403)
        if query.target.kind.value == "rabbitmq":
            raise UnknownStore(f"{query.target.path}: a RabbitMQ folder; its server has a page for changes")
        apply = form is not None and form.get("apply") == "1"
        if form is not None:
            given = values(CHANGES[name], form)
            found = CHANGES[name].run(query.open(), given, apply)
            if apply:
                self._site.forget(query.number)
                self._site.log(f"brokerstore: {query.target.path}: {name} {given}: {found.facts}")
        model = {
            "change": CHANGES[name],
            "given": form or query.given,
            "answer": found,
            "applied": apply,
            "kind": query.target.kind.value,
        }
        return self._page(View("change.html", CHANGES[name].title, model, None), query.number, [])


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
