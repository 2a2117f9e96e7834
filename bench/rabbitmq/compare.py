"""rabbitstore beside RabbitMQ's own modules, in turn on this machine; prints a Markdown table.

    BROKERSTORE_INTEROP=1 python -m bench.rabbitmq.compare [messages [rounds [prefix of row names]]]

Rates are medians.  A ratio is the median of the rounds' ratios, with minimum and maximum.

Needs Debian's rabbitmq-server (tests/interop/rabbitmq/install.sh) and its erlc.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import rabbitstore_workloads as ours
from tests.interop.rabbitmq.broker import Broker, why_not

LIBRARIES = Path("/usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8/plugins")
Row = tuple[str, str, Callable[[Path], ours.Rates]]


def rows(count: int) -> list[Row]:
    """Return (name, Erlang call, our workload) of each row."""
    found: list[Row] = []
    for size in (100, 1024, 8192):
        call = f'modules:store("{{folder}}", {count}, {size})'
        found.append((f"store {size} B", call, lambda folder, size=size: ours.store(folder, count, size)))
    for size, embedded in ((100, True), (1024, True), (100, False)):
        name = f"index {size} B" if embedded else "index, id only"
        call = f"modules:index({count}, {size}, {str(embedded).lower()})"
        work = lambda folder, size=size, embedded=embedded: ours.index(folder, count, size, embedded=embedded)  # noqa: E731
        found.append((name, call, work))
    for mode in ("default", "lazy"):
        for size in (100, 1024, 8192):
            call = f"modules:queue({count}, {size}, {mode})"
            work = lambda folder, size=size, mode=mode: ours.variable_queue(folder, count, size, mode=mode)  # noqa: E731
            found.append((f"queue {mode} {size} B", call, work))
    return found


def server_rates(broker: Broker, beams: Path, call: str, folder: Path) -> ours.Rates:
    """Return the rates of the server's modules."""
    text = broker.control("eval", f'code:add_patha("{beams}"), {call.replace("{folder}", str(folder))}.')
    return {name: float(rate) for name, rate in re.findall(r"\{(\w+),(\d+)\}", text)}


def measure(rounds: int, theirs: Callable[[], ours.Rates], mine: Callable[[], ours.Rates]) -> dict[str, str]:
    """Run both sides in turn; return the cells of the table by step."""
    pairs = [(theirs(), mine()) for _ in range(rounds)]
    cells = {}
    for step in pairs[0][1]:
        ratios = sorted(mine[step] / theirs[step] for theirs, mine in pairs)
        rates = statistics.median(theirs[step] for theirs, _ in pairs), statistics.median(mine[step] for _, mine in pairs)
        rates_text = " | ".join(f"{rate:,.0f}" for rate in rates)
        cells[step] = f"{rates_text} | {statistics.median(ratios):.1f} ({ratios[0]:.1f} .. {ratios[-1]:.1f})"
    return cells


def main() -> None:
    """Measure and print the table."""
    if why_not():
        sys.exit(why_not())
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with tempfile.TemporaryDirectory() as base:
        broker = Broker(Path(base) / "broker")
        command = ["erlc", "-o", base, str(Path(__file__).with_name("modules.erl"))]
        subprocess.run(command, env={"ERL_LIBS": str(LIBRARIES), "PATH": "/usr/bin:/bin", "HOME": base}, check=True)
        broker.start()
        try:
            print("| what | step | RabbitMQ /s | rabbitstore /s | ratio |\n|---|---|---|---|---|")
            requested = sys.argv[3] if len(sys.argv) > 3 else ""
            for name, call, work in (row for row in rows(count) if row[0].startswith(requested)):
                theirs = partial(server_rates, broker, Path(base), call, Path(base) / "peer")
                for step, cells in measure(rounds, theirs, partial(work, Path(base) / "ours")).items():
                    print(f"| {name} | {step} | {cells} |", flush=True)
        finally:
            broker.end()


if __name__ == "__main__":
    main()
