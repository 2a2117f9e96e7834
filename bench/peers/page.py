"""Write the tables of docs/performance.md and its plots from docs/performance.json.

    python -m bench.peers.page [--docs docs]

Each table replaces the lines between `<!-- rows: NAME -->` and `<!-- end of rows -->`.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

SECTIONS = (
    "shared",
    "queues",
    "live",
    "grpc",
    "folders",
    "rabbitmq",
)  # names of their rows begin with it and a colon; the others depend on the peer
SUMMARY = (  # question, the peer in words, (name, peer) of the row that answers it
    ("Put messages of 1 KiB, one thread", "RocketMQ's store", ("put, 1 thread, 1 KiB, until dispatched", "rocketmq")),
    ("The same in lists of 1,000 bodies", "RocketMQ's batches of 32",
     ("put_many of 1,000 bodies against a batch of 32, 1024 B, until dispatched", "rocketmq")),
    ("One thread, each put on the disk", "SQLite", ("durable single put, 1024 B", "sqlite")),
    ("32 threads, each put on the disk", "RocketMQ's store", ("synchronous flush, 32 threads, 1 KiB", "rocketmq")),
    ("Read messages of 1 KiB in order", "RocketMQ's store", ("scan, decoded, 1024 B", "rocketmq")),
    ("Look a message up by its key", "RocketMQ's store", ("query_hit", "rocketmq")),
    ("Open after a kill, 1,000,000 messages", "RocketMQ's store",
     ("open after an abort, 1,000,000 messages of 1 KiB", "rocketmq")),
    ("A queue of jobs, one process, on the disk", "huey on SQLite", ("queues: one process, 100 B, synced", "huey")),
    ("The same, several processes", "Redis", ("queues: several processes, 100 B, synced", "redis")),
    ("Verify 3.4 GiB that are not in memory", "reading the files", ("folders: RocketMQ, verify, cold", "plain read")),
    ("Serve a Java producer, batches of 50", "a RocketMQ broker", ("live: batches of 50, 100 B", "broker")),
)  # fmt: skip
BLOCK = re.compile(r"(<!-- rows: (\w+) -->\n).*?(<!-- end of rows -->)", re.DOTALL)
TITLES = {"rocketmq": "brokerstore against RocketMQ's store", "embedded": "brokerstore against embedded stores"}


def block_of(row: dict[str, Any]) -> str:
    """Return the name of the table that a row belongs to."""
    section: str = row["name"].partition(":")[0]
    if section in SECTIONS:
        return section
    return "rocketmq" if row["peer"] in ("rocketmq", "C loop that checks") else "embedded"


def with_tables(text: str, found: dict[str, Any]) -> str:
    """Return the page with the tables of the rows that were measured."""

    def replaced(block: re.Match[str]) -> str:
        if block[2] == "summary":
            return "\n".join([block[1].rstrip(), *summary(found["rows"]), block[3]])
        rows = [row for row in found["rows"] if block_of(row) == block[2]]
        has_dates = bool(rows) and all("date" in row for row in rows)  # a table of rows that have none stays as it is
        return f"{block[1]}{measured(found['machine'], rows)}\n{block[3]}" if has_dates else block[0]

    return BLOCK.sub(replaced, text)


def measured(machine: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return a table, with when and where its rows were measured, and the missed ones."""
    dates, loads = sorted({row["date"] for row in rows}), sorted({row["load"] for row in rows})
    lines = [
        f"Measured {_range(dates)} at a load of {_range(loads)}: {machine['cores']} cores ({machine['cpu']}),",
        f"Linux {machine['kernel']}, Python {machine['python']}.", "", *table(rows),
    ]  # fmt: skip
    missed = [
        f"- {row['name']} ({row['peer']}): {row['ratio']:.2f}, target {row['target']:.2g}.{at_best(row)}"
        for row in rows
        if row["holds"] is False
    ]
    return "\n".join([*lines, *(["", "Missed:", "", *missed] if missed else [])])


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table of the questions that most readers have."""
    by_name = {(row["name"], row["peer"]): row for row in rows}
    lines = ["| question | brokerstore | the peer | ratio | plain |", "|---|---:|---:|---:|---:|"]
    for question, peer_text, key in SUMMARY:
        row = by_name.get(key)
        if row is not None:
            ours, theirs = (f"{amount(row[side])} {row['unit']}" for side in ("ours_median", "theirs_median"))
            unprepared = "" if row.get("plain_ratio") is None else f"{row['plain_ratio']:.2f}"
            lines.append(f"| {question} | {ours} | {theirs} ({peer_text}) | {row['ratio']:.2f} | {unprepared} |")
    return lines


def _range(values: list[Any]) -> str:
    return f"{values[0]}" if len(values) == 1 else f"{values[0]} to {values[-1]}"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table."""
    lines = [
        "| what | peer | brokerstore | the peer | unit | ratio | minimum - maximum (rounds) | plain | target | |",
        "|---|---|---:|---:|---|---:|---|---|---|---|",
    ]
    for row in rows:
        target_text = "" if row["target"] is None else f">= {row['target']:.2g}"
        name = row["name"] + (f" ({row['note']})" if row["note"] else "")
        verdict = {True: "yes", False: "**missed**", None: ""}[row["holds"]]
        lines.append(
            f"| {name} | {row['peer']} | {amount(row['ours_median'])} | {amount(row['theirs_median'])} | {row['unit']} "
            f"| {row['ratio']:.2f} | {row['ratio_min']:.2f} - {row['ratio_max']:.2f} ({len(row['ours'])}) | {plain(row)} "
            f"| {target_text} | {verdict} |"
        )
    return lines


def plain(row: dict[str, Any]) -> str:
    """Return the ratio without prepared pages, if it was measured."""
    if row.get("plain_ratio") is None:
        return ""
    return f"{row['plain_ratio']:.2f} ({row['plain_min']:.2f} - {row['plain_max']:.2f})"


def at_best(row: dict[str, Any]) -> str:
    """Return the measured bound of a row as a sentence, if there is one."""
    if not row.get("bound_median"):
        return ""
    bound, theirs = row["bound_median"], row["theirs_median"]
    most = theirs / bound if row["less_is_better"] else bound / theirs
    return f" A loop that only {row['bound']} reaches {amount(bound)} {row['unit']}: {most:.2f} times the peer at most."


def amount(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def plot(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    """Draw one bar per row on a logarithmic scale, with the spread of the rounds and the target."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "brokerstore"  # the same figures give the same file
    from matplotlib import pyplot

    names = [f"{row['name']}" + ("" if row["peer"] == "rocketmq" else f" | {row['peer']}") for row in rows]
    figure, axes = pyplot.subplots(figsize=(10, 1 + 0.32 * len(rows)))
    ratios = [row["ratio"] for row in rows]
    spread = [
        [row["ratio"] - row["ratio_min"] for row in rows],
        [row["ratio_max"] - row["ratio"] for row in rows],
    ]
    colours = ["#b33" if row["holds"] is False else "#386" for row in rows]
    axes.barh(names, ratios, xerr=spread, color=colours, ecolor="#555", height=0.6)
    for index, row in enumerate(rows):
        if row["target"] is not None:
            axes.plot([row["target"]] * 2, [index - 0.42, index + 0.42], color="black", linewidth=2)
    axes.set_xscale("log")
    axes.axvline(1, color="#999", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("times as fast as the peer (black: target)")
    axes.set_title(title)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.page")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    docs = parser.parse_args().docs
    found, page = json.loads((docs / "performance.json").read_text()), docs / "performance.md"
    page.write_text(with_tables(page.read_text(), found))
    for name, title in TITLES.items():
        plot([row for row in found["rows"] if block_of(row) == name], docs / f"performance-{name}.svg", title)


if __name__ == "__main__":
    main()
