"""rabbitstore beside RabbitMQ's own modules, which `modules.erl` drives inside a running node.

Needs Debian's rabbitmq-server (tests/interop/rabbitmq/install.sh) and its erlc.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench import rabbitstore_workloads as ours
from tests.interop.rabbitmq.broker import Broker, why_not

from .turns import Row, take_turns_in_steps

LIBRARIES = Path("/usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8/plugins")
MESSAGES = 100_000
TARGET = 5.0
SIZES = (100, 1024, 8192)
STEPS = {
    "write": "write, 1,000 in flight, synced", "read": "read in order", "read_random": "read at random", "remove": "remove",
    "publish": "publish until synced", "ack": "acknowledge", "fetch_ack": "fetch and acknowledge",
    "fetch_ack_list": f"fetch, acknowledge {ours.ACKS} at a time",
}  # fmt: skip
Workload = Callable[[Path], ours.Rates]


def workloads(count: int) -> Iterator[tuple[str, str, Workload, tuple[str, ...]]]:
    """Yield what is measured, the Erlang call, our workload, and the steps of both."""
    for size in SIZES:
        call = f'modules:store("{{folder}}", {count}, {size})'
        yield f"message store, {size} B", call, partial(ours.store, count=count, size=size), tuple(STEPS)[:4]
    for size, embedded in ((100, True), (1024, True), (100, False)):
        call = f"modules:index({count}, {size}, {str(embedded).lower()})"
        work = partial(ours.index, count=count, size=size, embedded=embedded)
        yield f"index, {f'{size} B' if embedded else 'id only'}", call, work, ("publish", "read", "ack")
    for mode, name in (("default", "classic"), ("lazy", "lazy")):
        for size in SIZES:
            call = f"modules:queue({count}, {size}, {mode})"
            work = partial(ours.variable_queue, count=count, size=size, mode=mode)
            yield f"{name} queue, {size} B", call, work, ("publish", "fetch_ack", "fetch_ack_list")


def rows(folder: Path, rounds: int, scale: float, is_selected: Callable[[str], bool]) -> Iterator[Row]:
    """Yield a row for each step of each workload."""
    reason = why_not()
    if reason:
        print(f"no rows against RabbitMQ: {reason}")
        return
    broker = Broker(folder / "broker")
    command = ["erlc", "-o", str(folder), str(Path(__file__).with_name("modules.erl"))]
    subprocess.run(command, env={"ERL_LIBS": str(LIBRARIES), "PATH": "/usr/bin:/bin", "HOME": str(folder)}, check=True)
    broker.start()
    try:
        for what, call, work, steps in workloads(max(1000, int(MESSAGES * scale) // 1000 * 1000)):
            made = {step: Row(f"rabbitmq: {what}, {STEPS[step]}", "RabbitMQ 3.10.8", "msg/s", TARGET) for step in steps}
            if any(is_selected(row.name) for row in made.values()):
                theirs = partial(_server_rates, broker, folder, call)
                take_turns_in_steps(made, partial(work, folder / "ours"), theirs, rounds, plain_rounds=rounds)
                yield from made.values()
    finally:
        broker.end()


def _server_rates(broker: Broker, folder: Path, call: str) -> ours.Rates:
    """Return the rates of the server's modules."""
    text = broker.control("eval", f'code:add_patha("{folder}"), {call.replace("{folder}", str(folder / "peer"))}.')
    shutil.rmtree(folder / "peer", ignore_errors=True)
    return {name: float(rate) for name, rate in re.findall(r"\{(\w+),(\d+)\}", text)}
