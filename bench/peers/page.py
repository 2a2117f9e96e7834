"""docs/performance.md and its plots, of the rows that `python -m bench.peers --json FILE` wrote.

    python -m bench.peers.page bench-peers.json [--docs docs]

What stands in the page and is no figure, is here: how each peer was set up, and why a line is missed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

SETUP = """## How each was set up

- **RocketMQ's store 5.3.3** (`org.apache.rocketmq:rocketmq-store`, Java 17, heap of 3 GiB, G1), without a broker around it:
  plain defaults, 1 GiB files, asynchronous flush, dispatch and index on, four queues of one topic, keys and tags; `pool` is
  `transientStorePoolEnable`, `sync` is
  `SYNC_FLUSH`, where ours has `sync_flush_through_ring` on. The JVM has put 600,000 messages before anything counts,
  and both have read the topic once before it is scanned.
- **ours**: the same sizes, and the checksum over the whole record on, which RocketMQ leaves off. The message is built inside
  the loop on both sides, bodies, keys and tags are equal, every put's status is looked at.
- "until dispatched": the time ends when queues and index have caught up. "decoded": body, topic, tags, keys and the dictionary
  of properties of each message are read; ours computes the record's checksum on the way, the Java decoder none.
  "columns": body, topic, tags, keys, queue offset, physical offset and store time as Arrow batches, against the Java decoder's
  objects. "raw": a view a message, nothing in it touched (`check=False`); "headed": ours asks the head of each, the Java store
  still none.
- **LMDB** (`sync=False`, writable map, `append=True`), **RocksDB** (`rocksdict`, raw mode, no compression, its log on),
  **SQLite** (write-ahead log, `synchronous=OFF`), **persist-queue** (file queue) and a **plain file** (`struct`, `zlib.crc32`,
  one `write` a call): one record is key and body, on both sides; "whole" has topic and tags too, on both sides, the peer's as
  msgpack (`msgspec`). Key and body, or all of it, are read of each. In the durable row
  each syncs every put, ours with `sync_flush_through_ring`, in the others ours has its defaults, whose puts survive the process
  as well. persist-queue and the plain file are shown without a wanted ratio.
- growth: log files of 4 MiB, ours against ours; the target is a cost within 1.2 times that of a single file.
- Openings: the folder was read a moment ago, by whoever opens it next: after seconds without a touch the first pass over cached
  pages takes two to four times as long on this machine, and only one side came after such a pause.
- Before every timed stretch `sync` brings to the disk what the other side left dirty, and free memory is touched; who begins
  changes every round.
"""

WHY = """## Where ours loses, and why

{missed}

What bounds a row, as far as it was measured:

- **Fresh pages.** On the mapped path a put of 1 KiB touches 0.3 new pages of the page cache, each 0.3 to 0.7 us when they are
  at hand. Both engines pay that; the pool's ring takes no new pages for the log.
- **The disk.** What goes through the pool is written past the page cache, into blocks that were only allocated: 1.5 to 1.9 GB/s
  here, 2.3 to 3.4 where they were written before. A committer is a thread of Python: behind each write it waits up to 5 ms
  until a busy put lets go of the interpreter, so it writes as much at a time as the ring allows.
- **Python itself.** The caller's loop that builds a message with its key and tag takes 0.4 us of a put's 0.85 us, and 0.5 us of
  the 0.7 us that a message costs in `put_many` (processor time in the machine's fast state; all of it doubles in its slow
  one). So a `put_many` that cost nothing would not be 1.5 times as fast as this one, and 3 times the Java batch at 100 B cannot
  be reached with messages that are Python objects: `append_columns` has none. A loop that reads five attributes of a message
  takes 0.4 us. The Java compiler takes all that for next to nothing.
- **One sync.** A synchronous put of one thread is one write past the page cache and one `fdatasync`: 85-95 % of it is the
  system's, the rest Python's (10-20 us). Blocks are written with zeros ahead, or the journal of the file system would take a
  quarter more.
- **Two cores.** The dispatcher shares them with the putting thread and, with a pool, the committer; beside other work both
  engines slow down, which the least and the greatest ratio show.
- **Small reads.** Look-ups by offset, by key and by time run in compiled code over the maps. They are asked for a tenth of a
  second at a stretch: with a hundredth, as before, the Java compiler had not come to its best and a miss seemed as fast as the
  Java store's. What is left of a miss is the caller's key (half of it), the call, and a slot somewhere in an index of 420 MB;
  of a hit an item and its record's lines too; of a search by time some fifteen looks, each in another page of the log; of
  `message_at` the checksum over the record, which the Java store does not compute.
- **Growth.** A query of a single file's log finds its records in the processor's cache; of a hundred files, in one of a hundred
  thousand pages. The bound named with the row has that and nothing else. The faster a query of one file, the worse the row:
  1.0 M/s and 0.56 when queries took attributes of Python objects on the way, 1.9 M/s and 0.42 now, where 0.6 M/s became 0.8.
- **Columns.** One walk checks, takes apart and copies a record; two batches at a time, memory used again. A loop in C that only
  reads the records' bytes, a queue's scattered among those of the others, takes 183 ns a record of 1 KiB and 72 of 100 B here,
  a row of ours 241 and 104 on one core, 205 and 76 on two that have nothing else to do: whatever reads the bodies is no ten
  times as fast as the Java store.
- **Views.** A raw record is one `memoryview`, which Python makes, counts and frees in 65 ns. A look at each record's head, as
  `read_raw` takes unless it is told not to, costs 5 ns more since it is asked for ahead ("headed").
- **Checksums.** Ours computes one on every decoded message and on every row of columns (the record's, where it has one), the
  Java decoder none: 45 ns at 1 KiB where the processor takes 256 bytes a step (VPCLMULQDQ), else 80 ns.
- **An opening after an abort** is, of 46 ms for 570 MB of log, 25 of walk with both checksums on both cores, at the memory's
  speed, 8 to 20 of looks at what the index has, 4 at the queues, and syncs. What a note of ours vouches for is not dispatched
  again; in the first opening of a folder that only a broker wrote it is, 30 ms more.
"""

NOISE = """A ratio is ours to the peer's within one round, so that above 1 ours is faster; the table has the median of the
rounds, the least and the greatest, and how many there were. Nothing else ran on the machine while they were made. It is
a virtual one whose host takes back what is freed: whoever takes such a page again waits 5 to 15 us for it, and
everything that is written through the page cache then measures the host. So before every stretch, of either side,
memory is touched and given back at once (`bench/peers/pages.py`), and pages are at hand as they are on a machine of
one's own. Without that the mapped path of both sides is two to five times slower and their ratio goes towards 1: puts
of 1 KiB had 0.85, `append_columns` 4.4.
"""


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Of one peer, or of the embedded stores."""
    lines = [
        "| what | peer | ours | peer's | unit | ratio | least - greatest (rounds) | wanted | |",
        "|---|---|---:|---:|---|---:|---|---|---|",
    ]
    for row in rows:
        wanted = "" if row["target"] is None else f">= {row['target']:.2g}"
        name = row["name"] + (f" ({row['note']})" if row["note"] else "")
        verdict = {True: "yes", False: "**missed**", None: ""}[row["holds"]]
        lines.append(
            f"| {name} | {row['peer']} | {amount(row['ours_median'])} | {amount(row['theirs_median'])} | {row['unit']} "
            f"| {row['ratio']:.2f} | {row['ratio_min']:.2f} - {row['ratio_max']:.2f} ({len(row['ours'])}) "
            f"| {wanted} | {verdict} |"
        )
    return lines


def at_best(row: dict[str, Any]) -> str:
    """What bounds the row, where that was measured beside it."""
    if not row.get("bound_median"):
        return ""
    bound, theirs = row["bound_median"], row["theirs_median"]
    most = theirs / bound if row["less_is_better"] else bound / theirs
    return f" A loop that only {row['bound']} reaches {amount(bound)} {row['unit']}, so at most {most:.2f} times the peer."


def amount(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def plot(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    """One bar a row, on a logarithmic scale, with the spread of the rounds and the wanted ratio."""
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
    for place, row in enumerate(rows):
        if row["target"] is not None:
            axes.plot([row["target"]] * 2, [place - 0.42, place + 0.42], color="black", linewidth=2)
    axes.set_xscale("log")
    axes.axvline(1, color="#999", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("times as fast as the peer (black: wanted)")
    axes.set_title(title)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def page(found: dict[str, Any]) -> str:
    """The text."""
    machine = found["machine"]
    java = [row for row in found["rows"] if row["peer"] == "rocketmq"]
    others = [row for row in found["rows"] if row["peer"] != "rocketmq"]
    missed = [row for row in found["rows"] if row["holds"] is False]
    named = "\n".join(
        f"- {row['name']} ({row['peer']}): {row['ratio']:.2f} where {row['target']:.2g} is wanted.{at_best(row)}"
        for row in missed
    )
    lines = [
        "# Performance", "",
        f"Measured {machine['date']}: {machine['cores']} cores ({machine['cpu']}), Linux {machine['kernel']},",
        f"Python {machine['python']}.",
        "Made by `make bench-peers` and `python -m bench.peers.page`: change those, not this page. What was found while",
        "tuning is in [performance-notes.md](evidence/performance-notes.md).", "", NOISE,
        "## Against RocketMQ's store", "", "![ratios to RocketMQ's store](performance-rocketmq.svg)", "", *table(java), "",
        *_embedded(others), WHY.format(missed=named or "No row is missed."), SETUP,
    ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def _embedded(rows: list[dict[str, Any]]) -> list[str]:
    """Their section; a word where they were not measured."""
    head = ["## Against embedded stores, and against growth", ""]
    if not rows:
        return [*head, "Not measured yet: `make bench-peers GROUP=embedded`, `GROUP=growth`, `GROUP=memory`.", ""]
    return [*head, "![ratios to embedded stores](performance-embedded.svg)", "", *table(rows), ""]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.page")
    parser.add_argument("json", type=Path)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    found = json.loads(arguments.json.read_text())
    (arguments.docs / "performance.md").write_text(page(found))
    plots = (("rocketmq", "ours against RocketMQ's store", True), ("embedded", "ours against embedded stores", False))
    for name, title, is_java in plots:
        rows = [row for row in found["rows"] if (row["peer"] == "rocketmq") is is_java]
        if rows:
            plot(rows, arguments.docs / f"performance-{name}.svg", title)


if __name__ == "__main__":
    main()
