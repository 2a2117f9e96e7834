"""What each page shows: a model for its template, and beside it the JSON that the tool prints."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from brokerstore.identify import FolderKind
from brokerstore.report.page import meanings
from brokerstore.report.pictures import bars, columns
from commitlog.topic_names import DEAD_PREFIX
from storageio import InvalidMessage, StoreError, UnknownStore

from ..tool.backends import MessageLookup, MessagePage, PageRequest, is_rabbitmq, rabbitmq_tables, rocketmq_info
from ..tool.backends.opening import open_backend
from ..tool.commands.ls import list_queues
from ..tool.escapes import quote
from ..tool.options import I64_MAX
from ..tool.output import Answer, count_text, time_ms
from .bytes_view import file_at, hex_view
from .checks import VERBS, Check

if TYPE_CHECKING:
    from ..tool.backends.rocketmq_folder import RocketmqFolder
    from ..tool.body_schemas import BodySchemas
    from ..tool.target import Target

ROWS, QUEUES_SHOWN, FIRST_SHOWN = 50, 200, 15
COLUMNS, COUNTED_QUEUES = 48, 4  # of the chart over time, and the queues that it counts: each look-up maps pages of the log
SEARCH_S = 0.12  # of one page of a search without an index
FINDINGS_SHOWN = 100
FORMS = ("jsonl", "parquet")
COUNTED_LOG = 8 << 20  # bytes of a log without queues in which a page counts the messages of each
Model = dict[str, Any]
VERDICTS = {
    "lacking": ("The queues lack messages of the log: a writer was killed.", "A broker adds them when it starts.",
                "Next: brokerstore rebuild adds them, or opening the store for writing."),
    "killed": ("The last writer did not stop cleanly; nothing wrong is seen so far.",
               "A broker checks the end of the log when it starts, and cuts off what was not written to its end.",
               "Next: Findings checks every record."),
    "running": ("The server runs, or did not stop cleanly; nothing wrong is seen so far.",
                "A server rebuilds its tables when it starts, and delivers messages again.",
                "Next: Findings checks every record."),
    "intact": ("Every record is intact.", "A broker starts on this folder as it is."),
    "fine": ("Nothing wrong at first sight.", "Next: Findings checks every record."),
}  # fmt: skip
QUEUE_HEADERS = ["Topic", "Queue", "Min offset", "Max offset", "Messages"]


class View(NamedTuple):
    """A page: its template and model, and the JSON beside it, as lines where the tool prints lines."""

    template: str
    title: str
    model: Model
    facts: Any
    is_lines: bool = False


class Request(NamedTuple):
    """The folder that a page is about, and the parameters of its address."""

    number: int
    target: Target
    given: dict[str, str]
    checks: dict[str, Check]
    before: dict[int, Any]  # metrics of the last look at a folder in use
    schemas: BodySchemas

    def open(self) -> Any:
        """Return the backend of the folder, for one page."""
        return open_backend(self.target)

    def text(self, name: str) -> str | None:
        """Return a parameter, None if it is missing or empty."""
        return self.given.get(name) or None

    def number_of(self, name: str) -> int | None:
        """Return a parameter as a number; raise `InvalidMessage` for another text."""
        text = self.text(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > I64_MAX:
            raise InvalidMessage(f"{name} is {text[:40]!r}, expected a number from 0 to {I64_MAX}")
        return int(text)

    def link(self, page: str, **given: Any) -> str:
        """Return the address of another page of the folder."""
        query = urlencode({name: value for name, value in given.items() if value is not None}, errors="replace")
        return f"/{self.number}/{page}" + (f"?{query}" if query else "")


def verdict(request: Request, info: Model, notices: list[str]) -> tuple[list[str], bool]:
    """Return what is wrong, what a broker would do with it, and the next step; and whether anything is wrong."""
    verify = request.checks.get("verify")
    checked = verify.facts if verify is not None and not verify.is_running else None
    problems = checked["problems"] if checked is not None else info["problems"]
    about = meanings(info["kind"])
    is_bad = bool(problems) or any("incomplete" in line for line in notices)
    if problems:
        kinds = list(dict.fromkeys(one["kind"] for one in problems))[:5]
        effects = [f"{kind.replace('_', ' ')}: {one.broker} {one.effect}." for kind in kinds for one in about(kind)]
        first = f"{count_text(len(problems), 'problem')} found{'' if checked else ' at first sight'}."
        return [first, *effects, "Next: Findings shows each problem and the repair plan."], True
    state = (
        "lacking" if is_bad else "killed" if info.get("abort_file") and not info.get("in_use")
        else "running" if info.get("clean_stop") is False else "intact" if checked else "fine"
    )  # fmt: skip
    return list(VERDICTS[state]), is_bad


def overview(request: Request, notices: list[str]) -> View:
    """Show the verdict, what the folder holds, its queues and groups, times, and rates of a store in use."""
    folder = request.open()
    info = rabbitmq_tables.info(folder) if is_rabbitmq(folder) else rocketmq_info.info(folder)
    listed = _try(notices, lambda: _list(folder, notices)) or Answer({"queues": []}, [])
    rows = sorted(listed.facts["queues"], key=lambda row: -(row["messages"] or 0))
    shown, fields = _queue_rows(rows[:FIRST_SHOWN]), info.text[0] if isinstance(info.text[0], dict) else {}
    model = Model(
        fields=[(name.replace("_", " "), value) for name, value in fields.items()], queues=shown, queue_count=len(rows),
        messages=sum(row["messages"] or 0 for row in rows), tables=listed.text[1:], rows_link=_queue_link(request),
        dead=[row for row in _queue_rows(rows) if row[0].startswith(DEAD_PREFIX)][:FIRST_SHOWN],
        groups=None, rates=None, pictures=[], queue_headers=QUEUE_HEADERS,
    )  # fmt: skip
    model["verdict"], model["is_bad"] = verdict(request, info.facts, notices)
    if not is_rabbitmq(folder) and folder.target.kind is FolderKind.ROCKETMQ:
        model["groups"] = _try(notices, lambda: _lags(folder))
        model["pictures"] = _try(notices, lambda: list(_over_time(folder, rows[:COUNTED_QUEUES], info.facts))) or []
        if folder.is_in_use:
            model["rates"] = _try(notices, lambda: _rates(request, folder))
    depths = [
        ("/".join(map(str, row[:2])) if len(row) > 3 else row[0], row[-1]) for row in shown if row[-1] not in (0, "unknown")
    ]
    if depths:
        model["pictures"] += [Model(title="Messages of the deepest queues", caption="", svg=bars("Deepest queues", depths))]
    return View("overview.html", "Overview", model, info.facts)


def _list(folder: Any, notices: list[str]) -> Answer:
    """List the queues, unless they would have to be counted in a large log without queues."""
    if not is_rabbitmq(folder) and not folder.facts.has("consumequeue") and folder.log_size() > COUNTED_LOG:
        notices.append(f"the folder has a log without queues; run: brokerstore ls {quote(folder.target.path)}  (counts them)")
        return Answer({"queues": [], "topics": []}, [])
    return list_queues(folder)


def _try(notices: list[str], read: Any) -> Any:
    """Return a part of a page, or None with the error as a notice: a damaged folder still has its other parts."""
    try:
        return read()
    except StoreError as error:
        notices.append(f"{type(error).__name__}: {error}")
        return None


def _queue_rows(rows: list[Model]) -> list[list[Any]]:
    """Return topic, id and offsets of RocketMQ's queues, or name and type of RabbitMQ's, with the depth last."""
    if rows and "topic" in rows[0]:
        return [[row["topic"], row["queue_id"], row["min_offset"], row["max_offset"], row["messages"]] for row in rows]
    depths = ["unknown" if row["messages"] is None else row["messages"] for row in rows]
    return [[row["queue"], row.get("type", "classic"), depth] for row, depth in zip(rows, depths, strict=True)]


def _queue_link(request: Request) -> Any:
    """Return a function that links a row to the messages of its queue."""
    return lambda row: request.link("messages", **({"topic": row[0], "queue": row[1]} if len(row) > 3 else {"queue": row[0]}))


def _lags(folder: RocketmqFolder) -> list[list[Any]]:
    """Return group, topic and lag, the largest lag first."""
    from ..tool.backends.rocketmq_offsets import lag_rows

    sums: dict[tuple[str, str], int] = {}
    for row in lag_rows(folder):
        pair = row["group"], row["topic"]
        sums[pair] = sums.get(pair, 0) + row["lag"]
    return [[*pair, lag] for pair, lag in sorted(sums.items(), key=lambda one: -one[1])[:FIRST_SHOWN]]


def _over_time(folder: RocketmqFolder, rows: list[Model], facts: Model) -> Iterator[Model]:
    """Count messages by time of the deepest queues, by binary search: no message is counted one by one."""
    start, stop = facts["first_store_timestamp_ms"], facts["last_store_timestamp_ms"]
    if start is None or stop is None or not rows or stop < start:
        return
    bucket_ms = max(1, -(-(stop - start + 1) // COLUMNS))
    counts = [0] * COLUMNS
    with folder.open_store() as store:
        for row in rows:
            before = row["min_offset"]
            for number in range(COLUMNS):
                moment = start + (number + 1) * bucket_ms
                at = store.offset_by_time(row["topic"], row["queue_id"], moment) if moment <= stop else row["max_offset"]
                at = min(max(at, before), row["max_offset"])
                counts[number] += at - before
                before = at
    found = [(start + number * bucket_ms, count) for number, count in enumerate(counts) if count]
    if found:
        caption = f"By store time (UTC), of {'the queue' if len(rows) == 1 else f'the {len(rows)} deepest queues'}."
        yield Model(title="Messages over time", caption=caption, svg=columns("Messages over time", found, bucket_ms))


def _rates(request: Request, folder: RocketmqFolder) -> Answer:
    """Return what `top` shows, since the last look at this page."""
    from ..tool.backends.rocketmq_top import view

    with folder.open_store() as store:
        now = store.metrics()
        answer = view(folder, store, request.before.get(request.number, now), now)
    request.before[request.number] = now
    return answer


def queues(request: Request, notices: list[str]) -> View:
    """List the queues whose name has the text `q`, a page of them at a time."""
    answer = _list(request.open(), notices)
    rows, skip, part = answer.facts["queues"], request.number_of("skip") or 0, request.text("q") or ""
    found = [row for row in rows if part in row.get("topic", row.get("queue", ""))]
    more = request.link("queues", q=part or None, skip=skip + QUEUES_SHOWN) if len(found) > skip + QUEUES_SHOWN else None
    model = Model(
        queue_headers=QUEUE_HEADERS, rows=_queue_rows(found[skip : skip + QUEUES_SHOWN]), rows_link=_queue_link(request),
        more=more, count=len(found), part=part, tables=answer.text[1:], skip=skip,
    )  # fmt: skip
    return View("queues.html", "Queues", model, answer.facts)


def groups(request: Request, _notices: list[str]) -> View:
    """Show offset and lag of every group and queue."""
    folder = request.open()
    if request.target.kind is FolderKind.RABBITMQ:
        raise UnknownStore(f"{folder.target.path}: {folder.title} has no consumer groups: queues hold what is not acknowledged")
    folder.require_store()
    from ..tool.backends.rocketmq_offsets import show

    answer = show(folder, request.text("group"), request.text("topic"))
    return View("answer.html", "Consumer groups", Model(answer=answer.text, error=""), answer.facts)


def messages(request: Request, notices: list[str]) -> View:
    """Show a page of a queue or log; `id`, `key` and `time` find where to look."""
    folder, is_rabbit = request.open(), request.target.kind is FolderKind.RABBITMQ
    where = {"topic": request.text("topic"), "queue": request.text("queue")}
    requested = PageRequest(**where, start=request.number_of("start"), before=request.number_of("before"), max_count=ROWS)
    page, further = MessagePage([], None, None), None
    if (message_id := request.text("id")) is not None:
        page = page._replace(messages=list(folder.get(MessageLookup(message_id=message_id))))
    elif is_rabbit and requested.queue is None:
        notices.append("name a queue: the page of queues lists them")
    elif (key := request.text("key")) is not None:
        found, further = _with_key(request, folder, requested, key)
        page = page._replace(messages=found)
    else:
        page = folder.page(requested if (moment := request.text("time")) is None else _at_time(folder, requested, moment))
    rows, addresses = [], []
    for message in page.messages:
        cells, rest = folder.row(message)
        rows.append([*cells, rest])
        at = {"queue": message.queue, "offset": message.seq_id} if is_rabbit else {"at": message.physical_offset}
        addresses.append(request.link("message", **at))
    model = Model(
        headers=[*(column.header for column in folder.columns), folder.rest], rows=rows, given=request.given,
        link=lambda row: addresses[next(at for at, one in enumerate(rows) if one is row)], is_rabbitmq=is_rabbit,
        further=further,
        previous=None if page.first is None else request.link("messages", **where, before=page.first),
        following=None if page.following is None else request.link("messages", **where, start=page.following),
        first=request.link("messages", **where), last=request.link("messages", **where, before=I64_MAX),
        downloads=[(form, request.link("download", form=form, key=request.text("key"), **where)) for form in FORMS],
        json=request.link("messages.jsonl", **request.given),
    )  # fmt: skip
    lines = [line for message in page.messages if (line := folder.to_json(message)) is not None]
    return View("messages.html", "Messages", model, lines, is_lines=True)


def _with_key(request: Request, folder: Any, requested: PageRequest, key: str) -> tuple[list[Any], str | None]:
    """Return messages by key: with the index, or in a RabbitMQ queue by a search that the next page continues."""
    if request.target.kind is not FolderKind.RABBITMQ:
        if requested.topic is None:
            raise InvalidMessage("a key needs its topic, because the index has both")
        return list(folder.query(requested.topic, key, (None, None), ROWS)), None
    found: list[Any] = []
    stop, at = time.monotonic() + SEARCH_S, requested.start or 0
    with folder.open_folder() as opened:
        for message in folder.messages(opened, requested.queue, at):
            at = message.seq_id + 1
            if folder.has_key(message, key):
                found.append(message)
            if len(found) == ROWS or time.monotonic() > stop:
                return found, request.link("messages", queue=requested.queue, key=key, start=at)
    return found, None


def _at_time(folder: Any, requested: PageRequest, text: str) -> PageRequest:
    """Return the place of the first message stored at or after a time."""
    try:
        moment = min(time_ms(text), I64_MAX)
    except (ValueError, OverflowError) as error:
        raise InvalidMessage(f"{text[:40]!r} is neither milliseconds nor an ISO 8601 time") from error
    if is_rabbitmq(folder):
        raise InvalidMessage("RabbitMQ stores no time with a message")
    from ..tool.backends.rocketmq_page import offset_by_time
    from ..tool.filters import queue_number

    if requested.topic is None:
        return requested._replace(start=offset_by_time(folder, moment))
    with folder.open_store() as store:
        return requested._replace(
            start=store.offset_by_time(requested.topic, queue_number(requested.queue or "0") or 0, moment)
        )


def findings(request: Request, _notices: list[str]) -> View:
    """Show what the last check of the folder found, and the plan of its repair."""
    is_running = [check.is_running for check in request.checks.values()]
    facts = {verb: request.checks[verb].facts if verb in request.checks else None for verb in VERBS}
    model = Model(
        checks=request.checks, verify=facts["verify"], plan=(facts["recover"] or {}).get("plan"), limit=FINDINGS_SHOWN,
        bytes_link=_bytes_link(request), is_running=any(is_running),
    )  # fmt: skip
    return View("findings.html", "Findings", model, facts)


def _bytes_link(request: Request) -> Any:
    roots = request_roots(request)

    def link(row: list[Any]) -> str | None:
        file, _ = file_at(roots, row[1], row[2])
        has_bytes = any(os.path.isfile(os.path.join(root, file)) for root in roots)
        return request.link("bytes", file=row[1], offset=row[2]) if has_bytes else None

    return link


def file_bytes(request: Request, _notices: list[str]) -> View:
    """Show the bytes of a file of the folder around an offset."""
    found = hex_view(request_roots(request), request.text("file") or "", request.number_of("offset") or 0)
    return View("bytes.html", "Bytes", found, found)


def request_roots(request: Request) -> list[str]:
    """Return the folders whose files may be shown: that of the page, or of its virtual host, and those of its log."""
    facts: Any = request.target.facts
    if request.target.kind is FolderKind.RABBITMQ:
        return [facts.vhost(request.target.vhost), request.target.path]
    return [request.target.path, *facts.log_folders]
