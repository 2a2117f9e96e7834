"""`definitions`: the declarations of a RabbitMQ node, for a server that imports them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ..options import store_command
from ..output import print_line, problem_text, text_file

if TYPE_CHECKING:
    from ..backends.rabbitmq_folder import RabbitmqFolder


@store_command(
    "definitions",
    "definitions node",
    "definitions node --out definitions.json",
    "definitions node --vhost /",
    rabbitmq_only=True,
)
@click.option("-o", "--out", metavar="FILE", type=click.Path(), help="Write to FILE instead of stdout.")
def definitions(folder: RabbitmqFolder, out: str | None) -> int:
    """Write the declarations of a RabbitMQ node as JSON.

    Users, virtual hosts, permissions, policies, parameters, queues, exchanges and bindings of a node that does not run, in the
    form that rabbitmqctl import_definitions takes. Passwords stay hashed.
    """
    from rabbitstore import read_definitions

    from ..backends.rabbitmq_folder import declared_text

    found = read_definitions(folder.facts.path)
    if folder.target.vhost is not None:
        found = found.of_vhost(folder.target.vhost)
    folder.add_problems(found.problems)
    for note in found.notes:
        print_line(f"brokerstore: note: {problem_text(note)}")
    with text_file(out) as write:
        write(json.dumps(found.content, indent=1, sort_keys=True) + "\n")
    if out is not None:
        print_line(f"brokerstore: wrote {declared_text(found.counts())} to {out}")
    return folder.code
