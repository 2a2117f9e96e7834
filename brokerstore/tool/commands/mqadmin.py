"""The names and options of `mqadmin` for commands of this tool; the help does not show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..backends import Folder
from ..options import JSON, OFFSET, POSITIVE, TARGET_OPTIONS, TEXT, TIME, OneValueCommand, store_command
from ..output import show
from .decode_id import decode_id
from .dump import dump
from .get import get
from .ls import list_queues, ls
from .offsets import reset, show_offsets
from .query import query
from .stats import stats

_SHARED = {"folder", "as_json", *TARGET_OPTIONS}


def _option(*names: str, **settings: Any) -> click.Option:
    return click.Option(list(names), **settings)


_TOPIC = _option("-t", "--topic", type=TEXT, required=True)
_QUEUE = _option("-i", "--queueId", "queue", required=True)
_BEGIN = _option("-b", "--beginTimestamp", "begin_ms", type=TIME)
_END = _option("-e", "--endTimestamp", "end_ms", type=TIME)


def _alias(name: str, command: click.Command, *options: click.Option) -> click.Command:
    """Make a command that calls another with options of its own and the defaults of the others."""

    def run(**given: Any) -> int:
        defaults = {param.name: _default(param) for param in command.params}
        callback: Callable[..., int] | None = command.callback
        assert callback is not None
        return callback(**defaults | given)

    shared = [param for param in command.params if param.name in _SHARED]
    return OneValueCommand(name, params=[*shared, *options], callback=run, hidden=True)


def _default(param: click.Parameter) -> object:
    """Return an option's default; releases of click have different marks for a missing one."""
    if isinstance(param.default, str | int):
        return param.default
    return () if param.multiple else None


@store_command("topicStatus", sizes=True)
@JSON
@click.option("-t", "--topic", type=TEXT, required=True)
def _topic_status(folder: Folder, as_json: bool, topic: str) -> int:
    return show(list_queues(folder, topic), as_json)


_topic_status.hidden = True
_ALIASES: dict[str, tuple[click.Command, tuple[click.Option, ...]]] = {
    "queryMsgById": (get, (_option("-i", "--msgId", "message_id", required=True),)),
    "queryMsgByOffset": (get, (_TOPIC, _QUEUE, _option("-o", "--offset", type=OFFSET, required=True))),
    "queryMsgByKey": (query, (
        _TOPIC, _option("-k", "--msgKey", "key", type=TEXT, required=True), _BEGIN, _END,
        _option("-m", "--maxNum", "max_count", type=POSITIVE, default=64),
    )),
    "queryMsgByUniqueKey": (query, (_TOPIC, _option("-i", "--msgId", "key", type=TEXT, required=True))),
    "printMsg": (dump, (_TOPIC, _BEGIN, _END)),
    "printMsgByQueue": (dump, (_TOPIC, _QUEUE, _BEGIN, _END)),
    "consumeMessage": (get, (  # no group's offset moves
        _TOPIC, _QUEUE, _option("-o", "--offset", type=OFFSET, default=0),
        _option("-c", "--MessageNumber", "count", type=POSITIVE, default=128),
    )),
    "queryCq": (get, (
        _TOPIC, _option("-q", "--queue", required=True), _option("-i", "--index", "offset", type=OFFSET, required=True),
        _option("-c", "--count", type=POSITIVE, default=10),
    )),
    "topicList": (ls, ()),
    "statsAll": (stats, ()),
    "consumerProgress": (show_offsets, (_option("-g", "--groupName", "group", type=TEXT), _option("-t", "--topic", type=TEXT))),
    "resetOffsetByTime": (reset, (
        _option("-g", "--group", type=TEXT, required=True), _TOPIC,
        _option("-s", "--timestamp", "time_ms", type=TIME, required=True), _option("--apply/--plan", default=True),
    )),
    "DecodeMessageId": (decode_id, (_option("-i", "--messageId", "message_id", required=True),)),
}  # fmt: skip
COMMANDS: dict[str, click.Command] = {name: _alias(name, command, *options) for name, (command, options) in _ALIASES.items()}
COMMANDS["topicStatus"] = _topic_status
