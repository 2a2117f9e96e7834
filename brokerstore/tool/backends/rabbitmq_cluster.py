"""The folders of several nodes of one RabbitMQ cluster: which has the newest copy of each queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from rabbitstore.cluster import CLASSIC, ClusterQueue, cluster_queues
from storebytes.folder_kind import FolderKind

from ..output import Answer, Table, count_text
from ..target import find_target
from .opening import open_backend
from .rabbitmq import RabbitmqBackend
from .rabbitmq_folder import outcome

HEADERS = ("type", "queue", "copies", "members", "newest copy in", "last", "on a majority up to", "only there")


def sides_of(backend: Any, others: Sequence[str]) -> list[RabbitmqBackend]:
    """Open the other folders; all must be those of RabbitMQ nodes."""
    targets = [
        backend.target,
        *(
            find_target(other, {"vhost": backend.target.vhost})
            for other in dict.fromkeys(others)
            if other != backend.target.path
        ),
    ]
    for target in targets:
        if target.kind is not FolderKind.RABBITMQ:
            raise click.UsageError(
                f"several folders are those of one RabbitMQ cluster; {target.path} is a store of another kind"
            )
    return [backend, *(open_backend(target) for target in targets[1:])]


def info(backend: Any, others: Sequence[str]) -> Answer:
    """List each queue with its copies."""
    sides = sides_of(backend, others)
    queues = _queues(sides)
    rows = [[one.type, one.queue, len(one.copies), one.members, one.copies[0].folder, *_ends(one)] for one in queues]
    alone = sum(bool(one.alone) for one in queues)
    lines = [f"{count_text(len(queues), 'queue')} in {count_text(len(sides), 'folder')}."]
    if alone:
        lines.append(f"Of {count_text(alone, 'queue')} only the newest copy has the last entries: keep that folder.")
    missing = [one.queue for one in queues if not one.has_majority]
    if missing:
        lines.append(f"Fewer than a majority of the copies are here, so newer ones may exist: {', '.join(missing)}")
    facts = {"queues": [one.to_json() for one in queues], "folders": [side.target.path for side in sides]}
    return Answer(facts, [*lines, Table(HEADERS, rows)], outcome([found for side in sides for found in side.problems]))


def _ends(queue: ClusterQueue) -> list[Any]:
    if queue.type == CLASSIC:
        return ["", "", "all of it" if len(queue.copies) == 1 else ""]
    return [
        queue.copies[0].last_index,
        "unknown" if queue.agreed is None else queue.agreed,
        f"{queue.alone} entries" if queue.alone else "nothing",
    ]


def newest_sides(backend: Any, others: Sequence[str]) -> list[RabbitmqBackend]:
    """Open the folders, each for the queues of which it has the newest copy."""
    sides = sides_of(backend, others)
    queues = _queues(sides)
    for side in sides:
        side.only = {(one.type, one.queue) for one in queues if one.copies[0].folder == side.target.path}
    return sides


def _queues(sides: Sequence[RabbitmqBackend]) -> list[ClusterQueue]:
    return cluster_queues([side.target.path for side in sides], sides[0].target.vhost)
