"""`replicate`: follow a live RocketMQ master into a folder."""

from __future__ import annotations

import os
import time

import click

from ..codes import CLEAN
from ..options import JSON, plain_command
from ..output import count_text, emit, emit_json, print_line
from ..sigterm import sigterm_interrupts

SHOW_EVERY_S = 5.0
PORT_MAX = 65_535
SECRET = "BROKERSTORE_SECRET"


def address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT; an IPv6 host may be in brackets."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) <= PORT_MAX:
        raise click.BadParameter(f"{text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def secret_of(access_key: str | None) -> str | None:
    """Return the secret for a key, from the environment."""
    secret = os.environ.get(SECRET) if access_key else None
    if access_key and not secret:
        raise click.UsageError(f"--access-key: the environment variable {SECRET} has no secret")
    return secret


@plain_command(
    "replicate", "replicate 127.0.0.1:10911 replica --from-start", "replicate 127.0.0.1:10911 replica --until-current"
)
@click.argument("broker", metavar="HOST:PORT", type=address)
@click.argument("folder", metavar="DIR", type=click.Path())
@click.option("--from-start", is_flag=True, help="A new folder begins with the master's oldest file, not its last one.")
@click.option("--ha-port", type=click.IntRange(1, PORT_MAX), help="Replication port, if not the one that the broker names.")
@click.option("--access-key", help=f"For a broker that wants RocketMQ's signature; the secret is in {SECRET}.")
@click.option("--until-current", is_flag=True, help="Stop when the folder has everything that the master had at the start.")
@JSON
def replicate(
    broker: tuple[str, int], folder: str, ha_port: int | None, access_key: str | None, *, from_start: bool,
    until_current: bool, as_json: bool,
) -> int:  # fmt: skip
    """Follow the log of a running RocketMQ broker.

    It runs until interrupted; other processes may read DIR meanwhile.
    """
    from brokerstore.identify import FolderKind
    from brokerstore.write_target import check_write_target
    from rocketlink import Replica, ReplicaStatus

    def report(status: ReplicaStatus) -> None:
        facts = {"log_end": status.log_end, "durable_end": status.durable_end, "lag_bytes": status.lag_bytes}
        facts |= {"is_connected": status.is_connected}
        state = "connected" if status.is_connected else f"not connected: {status.last_error or 'not yet'}"
        text = f"log end {status.log_end}, {count_text(status.lag_bytes, 'byte')} behind the master, {state}"
        if as_json:
            emit_json(facts)
        else:
            emit(text)

    secret = secret_of(access_key)
    check_write_target(folder, FolderKind.ROCKETMQ)
    with (
        sigterm_interrupts(),
        Replica(*broker, folder, ha_port=ha_port, from_start=from_start, access_key=access_key, secret=secret) as replica,
    ):
        print_line(f"Following {broker[0]}:{broker[1]} into {folder}; interrupt to stop")
        shown: ReplicaStatus | None = None
        goal: int | None = None
        next_s = time.monotonic()
        while True:
            status = replica.status
            if goal is None and status.is_connected:
                goal = status.master_end
            is_done = until_current and goal is not None and status.durable_end >= goal
            if is_done or (time.monotonic() >= next_s and status != shown):
                report(status)
                shown, next_s = status, time.monotonic() + SHOW_EVERY_S
            if is_done:
                return CLEAN
            replica.wait(status.durable_end + 1, 0.2)
