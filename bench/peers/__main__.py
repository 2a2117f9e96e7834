"""Run the selected rows, print each one as it is done, and write all of them as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from . import embedded, folders, growth, grpc_proxy, live, queues, rabbitmq_modules, rocketmq, shared
from .java_store import JavaStores, why_not
from .turns import Row, line


def machine() -> dict[str, Any]:
    """Return the machine's processor and versions."""
    cpu = [text.split(":", 1)[1].strip() for text in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in text]
    return {
        "cpu": cpu[0] if cpu else platform.processor(), "cores": len(cpu), "kernel": platform.release(),
        "python": platform.python_version(),
    }  # fmt: skip


def rows(arguments: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Yield the rows of the selected groups."""

    def is_selected(name: str) -> bool:
        return not arguments.only or any(word in name for word in arguments.only)

    groups = [name for name in rocketmq.GROUPS if not arguments.group or name in arguments.group]
    if groups and why_not():
        print(f"no rows against RocketMQ: {why_not()}")
        groups = []
    if groups:
        with JavaStores() as jvm:
            for name in groups:
                bench = rocketmq.Bench(jvm, folder, arguments.rounds, arguments.scale, is_selected)
                yield from rocketmq.GROUPS[name](bench)
    others = {
        "embedded": lambda: embedded.rows(folder, arguments.rounds, arguments.scale, is_selected),
        "folders": lambda: folders.rows(folder, arguments.rounds, arguments.scale, is_selected),
        "growth": lambda: chain(
            growth.rows(folder, arguments.rounds, arguments.scale, is_selected),
            growth.index_rows(folder, arguments.rounds, is_selected),
        ),
        "shared": lambda: shared.rows(folder, arguments.rounds, arguments.scale, is_selected),
        "queues": lambda: queues.rows(folder, arguments.rounds, arguments.scale, is_selected),
        "live": lambda: live.rows(folder, arguments.rounds, arguments.scale, is_selected),
        "grpc": lambda: grpc_proxy.rows(folder, arguments.rounds, arguments.scale, is_selected),
        "rabbitmq": lambda: rabbitmq_modules.rows(folder, arguments.rounds, arguments.scale, is_selected),
        "memory": lambda: growth.memory_rows(folder, arguments.scale, is_selected),
    }
    for name, made in others.items():
        if not arguments.group or name in arguments.group:
            yield from made()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers")
    parser.add_argument("--group", action="append", help="of rows; more than once for several")
    parser.add_argument("--only", action="append", help="rows whose name has this in it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of messages")
    parser.add_argument("--folder", type=Path, help="where the stores are made")
    parser.add_argument("--json", type=Path, default=Path("docs/performance.json"), help="keeps its other rows")
    arguments = parser.parse_args()
    kept = json.loads(arguments.json.read_text()) if arguments.json.exists() else {"rows": []}
    found = {(row["name"], row["peer"]): row for row in kept["rows"]}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for row in rows(arguments, Path(folder)):
            print(line(row), flush=True)
            found[row.name, row.peer] = row.measured() | {
                "date": time.strftime("%Y-%m-%d"),
                "load": round(os.getloadavg()[0], 1),
            }
            arguments.json.write_text(json.dumps({"machine": machine(), "rows": list(found.values())}, indent=1))


if __name__ == "__main__":
    main()
