"""Commands by the names and options that `mqadmin` has for them, for fingers that know those.  Not shown in the help."""

from __future__ import annotations

import click

from .options import JSON, Filters, named_errors, with_target
from .target import Target
from .value_types import MOMENT, OFFSET, POSITIVE, QUEUE_ID, TEXT

UNIQUE_MAX = 32  # a resent message has its unique key again
_TOPIC = click.option("-t", "--topic", type=TEXT, required=True)


@click.command("queryMsgById", hidden=True)
@with_target(sizes=True)
@JSON
@click.option("-i", "--msgId", "message_id", required=True)
def query_by_id(target: Target, as_json: bool, message_id: str) -> int:
    """get --id."""
    from .log_commands import get_by_id

    return get_by_id(target, as_json, message_id)


@click.command("queryMsgByOffset", hidden=True)
@with_target(sizes=True)
@JSON
@_TOPIC
@click.option("-i", "--queueId", "queue_id", type=QUEUE_ID, required=True)
@click.option("-o", "--offset", type=OFFSET, required=True)
def query_by_offset(target: Target, as_json: bool, topic: str, queue_id: int, offset: int) -> int:
    """get --topic --queue --offset."""
    from .queue_commands import get_messages

    return get_messages(target, as_json, topic, queue_id, offset, 1)


@click.command("queryMsgByKey", hidden=True)
@with_target(sizes=True)
@JSON
@_TOPIC
@click.option("-k", "--msgKey", "key", type=TEXT, required=True)
@click.option("-b", "--beginTimestamp", "begin_ms", type=MOMENT)
@click.option("-e", "--endTimestamp", "end_ms", type=MOMENT)
@click.option("-m", "--maxNum", "max_count", type=POSITIVE, default=64)
def query_by_key(
    target: Target, as_json: bool, topic: str, key: str, begin_ms: int | None, end_ms: int | None, max_count: int
) -> int:  # fmt: skip
    """query."""
    from .queue_commands import query_messages

    return query_messages(target, as_json, topic, key, (begin_ms, end_ms), max_count)


@click.command("printMsg", hidden=True)
@with_target()
@JSON
@_TOPIC
@click.option("-b", "--beginTimestamp", "begin_ms", type=MOMENT)
@click.option("-e", "--endTimestamp", "end_ms", type=MOMENT)
def print_messages(target: Target, as_json: bool, topic: str, begin_ms: int | None, end_ms: int | None) -> int:
    """dump --topic."""
    from .log_commands import dump_messages

    return dump_messages(target, as_json, Filters(topic, None, begin_ms, end_ms, None, None, None, None, ()).for_log(), None)


@click.command("topicList", hidden=True)
@with_target(sizes=True)
@JSON
def topic_list(target: Target, as_json: bool) -> int:
    """ls."""
    from .queue_list import list_queues

    return list_queues(target, as_json)


@click.command("statsAll", hidden=True)
@with_target()
@JSON
def stats_all(target: Target, as_json: bool) -> int:
    """stats."""
    from .stats import show_stats

    return show_stats(target, as_json, "queue")


@click.command("consumerProgress", hidden=True)
@with_target(sizes=True)
@JSON
@click.option("-g", "--groupName", "group", type=TEXT)
@click.option("-t", "--topic", type=TEXT)
def consumer_progress(target: Target, as_json: bool, group: str | None, topic: str | None) -> int:
    """offsets show."""
    from .offsets import show

    return show(target, as_json, group, topic)


@click.command("resetOffsetByTime", hidden=True)
@with_target(sizes=True)
@JSON
@click.option("-g", "--group", type=TEXT, required=True)
@_TOPIC
@click.option("-s", "--timestamp", "time_ms", type=MOMENT, required=True)
def reset_by_time(target: Target, as_json: bool, group: str, topic: str, time_ms: int) -> int:
    """offsets reset --to-time."""
    from .offsets import reset

    return reset(target, as_json, (group, topic, None), None, time_ms)


@click.command("DecodeMessageId", hidden=True)
@JSON
@click.option("-i", "--messageId", "message_id", required=True)
@named_errors
def decode_message_id(message_id: str, as_json: bool) -> int:
    """decode-id."""
    from .log_commands import show_id

    return show_id(message_id, as_json)


@click.command("queryMsgByUniqueKey", hidden=True)
@with_target(sizes=True)
@JSON
@_TOPIC
@click.option("-i", "--msgId", "key", type=TEXT, required=True)
def query_by_unique_key(target: Target, as_json: bool, topic: str, key: str) -> int:
    """query: unique keys are in the index, too."""
    from .queue_commands import query_messages

    return query_messages(target, as_json, topic, key, (None, None), UNIQUE_MAX)


@click.command("printMsgByQueue", hidden=True)
@with_target()
@JSON
@_TOPIC
@click.option("-i", "--queueId", "queue", required=True)
@click.option("-b", "--beginTimestamp", "begin_ms", type=MOMENT)
@click.option("-e", "--endTimestamp", "end_ms", type=MOMENT)
def print_queue(target: Target, as_json: bool, topic: str, queue: str, begin_ms: int | None, end_ms: int | None) -> int:
    """dump --topic --queue."""
    from .log_commands import dump_messages

    return dump_messages(target, as_json, Filters(topic, queue, begin_ms, end_ms, None, None, None, None, ()).for_log(), None)


@click.command("consumeMessage", hidden=True)
@with_target(sizes=True)
@JSON
@_TOPIC
@click.option("-i", "--queueId", "queue_id", type=QUEUE_ID, required=True)
@click.option("-o", "--offset", type=OFFSET, default=0)
@click.option("-c", "--MessageNumber", "count", type=POSITIVE, default=128)
def consume_messages(target: Target, as_json: bool, topic: str, queue_id: int, offset: int, count: int) -> int:
    """get --count; no group's offset moves."""
    from .queue_commands import get_messages

    return get_messages(target, as_json, topic, queue_id, offset, count)


@click.command("queryCq", hidden=True)
@with_target(sizes=True)
@JSON
@_TOPIC
@click.option("-q", "--queue", "queue_id", type=QUEUE_ID, required=True)
@click.option("-i", "--index", "offset", type=OFFSET, required=True)
@click.option("-c", "--count", type=POSITIVE, default=10)
def query_queue(target: Target, as_json: bool, topic: str, queue_id: int, offset: int, count: int) -> int:
    """get --count: the messages that the units point at."""
    from .queue_commands import get_messages

    return get_messages(target, as_json, topic, queue_id, offset, count)


@click.command("topicStatus", hidden=True)
@with_target(sizes=True)
@JSON
@_TOPIC
def topic_status(target: Target, as_json: bool, topic: str) -> int:
    """ls, of one topic."""
    from .queue_list import list_queues

    return list_queues(target, as_json, topic)


COMMANDS: tuple[click.Command, ...] = (
    query_by_id, query_by_offset, query_by_key, print_messages, topic_list, stats_all, consumer_progress, reset_by_time,
    decode_message_id, query_by_unique_key, print_queue, consume_messages, query_queue, topic_status,
)  # fmt: skip
