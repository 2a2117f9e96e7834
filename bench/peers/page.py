"""Write docs/performance.md and its plots from the rows of `python -m bench.peers --json FILE`.

    python -m bench.peers.page bench-peers.json [--docs docs] [--section shared|live|folders]

The text of the page is here: how each peer was set up, and why a target is missed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

SETUP = """## Setup of each store

- **RocketMQ's store 5.3.3** (`org.apache.rocketmq:rocketmq-store`, Java 17, heap of 3 GiB, G1), without a broker around it:
  defaults, 1 GiB files, asynchronous flush, dispatch and index enabled, four queues of one topic, keys and tags. `pool` is
  `transientStorePoolEnable`. `sync` is `SYNC_FLUSH`, with `sync_flush_through_ring` on our side. The JVM puts 600,000
  messages before anything is measured, and both sides read the topic once before a scan.
- **brokerstore**: the same sizes, and the whole-record checksum, which RocketMQ leaves off. The message is built inside the
  loop on both sides; bodies, keys and tags are equal; the status of every put is checked.
- "until dispatched": the measurement ends when queues and index have caught up. "decoded": reads body, topic, tags, keys
  and the properties of each message; brokerstore also computes the checksum of the record, the Java decoder none.
  "columns": body, topic, tags, keys, queue offset, physical offset and store time as Arrow batches, against the Java
  decoder's objects. "raw": one view per message, without touching it (`check=False`). "headed": brokerstore reads the
  header of each, the Java store does not.
- **LMDB** (`sync=False`, writable map, `append=True`), **RocksDB** (`rocksdict`, raw mode, no compression, with its log),
  **SQLite** (write-ahead log, `synchronous=OFF`), **persist-queue** (file queue) and a **plain file** (`struct`,
  `zlib.crc32`, one `write` per call): a record is key and body on both sides; "whole" adds topic and tags on both sides,
  for the peer as msgpack (`msgspec`). Key and body, or all of it, are read from each. In the durable row each side syncs
  every put, brokerstore with `sync_flush_through_ring`; in the others brokerstore has its defaults, whose puts survive the
  process as well. persist-queue and the plain file have no target.
- growth: log files of 4 MiB, brokerstore against itself; the target is a cost within 1.2 times that of a single file.
- Openings: each side reads the folder immediately before it opens it. After seconds without access the first pass over
  cached pages takes two to four times as long on this machine.
- Before every measurement `sync` writes what the other side left dirty, and free memory is touched. The side that begins
  alternates.
"""

WHY = """## Missed targets, and why

{missed}

What bounds a row, as far as it was measured:

- **Fresh pages.** On the mapped path a put of 1 KiB touches 0.3 new pages of the page cache, each 0.3 to 0.7 us if they are
  available. Both engines pay that. The ring of the pool takes no new pages for the log.
- **The disk.** The pool writes past the page cache into blocks that are only allocated: 1.5 to 1.9 GB/s here, 2.3 to 3.4
  into blocks that were written before. The committer is a Python thread, which waits up to 5 ms for the GIL after
  each write while puts keep it; a committer without the GIL gained less than 2 % when it was tried.
- **Python.** The caller's loop that builds a message with its key and tag takes 0.4 us of a put's 0.85 us, and 0.5 us of
  the 0.7 us per message of `put_many` (processor time in the machine's fast state; the slow state doubles it). So a
  `put_many` without any cost would be less than 1.5 times as fast as this one, and Python objects cannot reach 3 times the
  Java batch at 100 B. `append_columns` has none. A loop that reads five attributes of a message takes 0.4 us. The Java
  compiler removes most of that.
- **One sync.** A synchronous put of one thread is one write past the page cache and one `fdatasync`. 85-95 % of it is the
  system's time, the rest Python's (10-20 us). Zeros are written ahead, otherwise the file system's journal would take a
  quarter more.
- **Two cores.** The dispatcher shares them with the putting thread and, with a pool, the committer. Other work slows both
  engines, which shows in the minimum and maximum.
- **Small reads.** Lookups by offset, key and time run in compiled code over the maps. They are measured for a tenth of a
  second at a time, so that the Java compiler reaches its best. Half of a miss is the caller's key; the rest is the call and
  a slot in an index of 420 MB. A hit adds an item and the record's cache lines. A search by time takes about fifteen steps,
  each in another page of the log. `message_at` computes the checksum of the record, which the Java store does not.
- **Growth.** With a single file a query finds its records in the processor's cache; with a hundred files, in one of a
  hundred thousand pages. The bound given with the row has only that cost. The faster a query of one file, the worse the
  row: 1.0 M/s and 0.56 when queries used Python attributes, 1.9 M/s and 0.42 now, although 0.6 M/s became 0.8.
- **Columns.** One walk checks, decodes and copies a record, for two batches at a time, in reused memory. A C loop that only
  reads the bytes of the records, scattered among those of other queues, takes 183 ns per record of 1 KiB and 72 of 100 B
  here. A row takes 241 and 104 on one core, and 205 and 76 on two idle ones. So reading the bodies alone prevents ten times
  the rate of the Java store.
- **Views.** A raw record is one `memoryview`, which Python creates, counts and frees in 65 ns. Reading the header of each
  record, the default of `read_raw`, costs 5 ns more with prefetching ("headed").
- **Checksums.** brokerstore computes one for every decoded message and every row of columns (that of the record, if it has
  one), the Java decoder none: 45 ns at 1 KiB with VPCLMULQDQ, otherwise 80 ns.
- **An opening after an abort** takes 46 ms for 570 MB of log: 25 ms walk both checksums on both cores, at memory speed, 8
  to 20 read the index, 4 the queues, and the rest are syncs. What brokerstore's sidecar covers is not dispatched again. The
  first opening of a folder that only a broker wrote takes 30 ms more.
"""

NOISE = """A ratio is brokerstore's rate divided by the peer's within one round (for times the reverse), so above 1
brokerstore is faster. The table has the median of the rounds, minimum and maximum, and the number of rounds. Nothing else
ran on the machine. It is a virtual machine whose host takes freed memory back: a new page then costs 5 to 15 us, and
everything written through the page cache measures the host. So before every measurement of either side memory is touched
and released (`bench/peers/pages.py`), and pages are available as on a physical machine. Without that the mapped path of
both sides is two to five times slower and their ratio approaches 1: puts of 1 KiB had 0.85, `append_columns` 4.4.
"""


SHARED = """## One store, several processes

{where}.
At a load above 5 other programs run as well, and these figures have to be measured again on an idle machine.

{table}

- "put": median of single puts of a process beside the first one. "pipelined": four processes together, 100 messages a
  transaction or pipeline for the peers, `put_async` for brokerstore. "wake-up": median from the begin of a put in one process
  to the message in another, 2 ms after the message before, which is acknowledged meanwhile. "idle": processor time of the
  first process and a waiting consumer.
- **brokerstore.connect**, whose first process owns the store; **SQLite** with a write-ahead log and `synchronous=OFF`;
  **persist-queue**'s `SQLiteQueue`; **LMDB** with a writable map and no syncs; **Redis** on a Unix socket, with an append-only
  file that is not synced. Consumers of SQLite, persist-queue and LMDB look for messages every millisecond, because these have
  no wake-up between processes.
- SQLite and LMDB write from the putting process without asking another one, so a single put is faster there. brokerstore's
  and Redis's puts wait for an answer through a socket.
- What bounds brokerstore: a pipelined put takes 4 us of processor time in the client and 3 us in the owner, so two cores bound
  the rate of four clients and the owner. A wake-up is two ways through a socket and the Python of three processes, which runs
  with cold caches after each pause.
"""
LIVE = """## A served store and a real broker

{where}.
At a load above 5 other programs run as well, and these figures have to be measured again on an idle machine.

{table}

- One unmodified Java producer (client 5.3.3) sends to a store that `BrokerServer` serves, and to a real broker 5.3.3 with
  asynchronous flush. Both have RocketMQ's file sizes, four queues, and a JVM of clients of their own. Rates are of acknowledged
  messages.
- "unanswered": so many sends are on their way; of batches, 20.
- The server is one Python thread. A single send takes 20 us of it for frame, put and answer, plus the calls of the socket,
  which requests that arrive together share: with an answer for each, the row of 500 unanswered sends had 0.34. A batch of 50
  takes 170 us with 100 B and 280 us with 1024 B, half of it the append. The client needs 5 us a message on either side, so on
  two cores it bounds the rates of batches as much as the server.
"""
FOLDERS = """## Whole folders

{where}.
At a load above 5 other programs run as well, and these figures have to be measured again on an idle machine.

{table}

- The whole command, with the start of the interpreter, against reading all files with a buffer of 1 MiB. Cold: the folder's
  pages were dropped from the page cache, which does not empty the cache of the machine's host.
- Messages of 1 KiB; those of RocketMQ have a key and a tag, those of RabbitMQ are in one classic queue (version 1).
- `rebuild --apply` also writes: queues and index of the whole store, and the old ones as a backup.
- "export to Parquet": against `pyarrow.parquet.write_table` of the same table, which is in memory before.
"""
NODES = """## Folders of a RabbitMQ 4 node

Measured 2026-11-26 on two cores at a load of 15 to 20 by other programs: ratios of one run count, and processor time \
more than
elapsed time. The queues were published by a client to a real 4.0.5 server, which was then killed.

| what | command | brokerstore | beside it | rounds |
|---|---|---:|---:|---:|
| quorum queue, 200,000 messages of 1 KiB, each until its JSON line | `dump --json --queue Q` | 4.8 us (4.6 - 4.9), \
0.22 GB/s | the decoder of terms: 15.9 us (15.5 - 16.5) | 5, 3 |
| stream, the same messages | `dump --json --queue S` | 3.3 us (3.2 - 3.5), 0.32 GB/s | before: 4.6 us (4.6 - 4.6) | 5, 2 |
| killed classic queue, 1,000,000 messages of 200 B, elapsed | `recover --apply` | 5.8 s (4.2 - 6.4) | start of the \
server: 30 s (27 - 35) | 3 |
| the same, processor time | `recover --apply` | 2.1 s (1.9 - 2.1) | start of the server: 22 s (20 - 25) | 3 |

`recover` reads every message of that folder and finds nothing to repair; the start of the server includes 5 s for an \
empty node.

Largest memory: anonymous, and resident with the mapped files, which the system can take back.

| folder | `dump --json` | `verify` | `stats` |
|---|---:|---:|---:|
| classic queue, 10,000,000 messages of 100 B | 25, 37 MiB | 23, 35 MiB | 22, 34 MiB |
| quorum queue, 200,000 messages of 1 KiB | 54, 315 MiB | 56, 511 MiB | 53, 509 MiB |
| quorum queue, 800,000 messages of 1 KiB | 124, 1,135 MiB | 125, 1,528 MiB | 123, 1,544 MiB |
| stream, 200,000 messages of 1 KiB | 30, 255 MiB | | |
| stream, 800,000 messages of 1 KiB | 32, 515 MiB | | |

- `verify` and `stats` of the node read both queues in one process.
- A stream holds one chunk. Its mapped segment counts as resident.
- A quorum queue holds twelve bytes for an entry of its log and eight for a ready message. More comes from its newest \
checkpoint,
  whose terms are decoded as a whole: 430,000 of the 800,000 messages were in it. From the two sizes, ten million \
messages take
  1.2 GiB, above the target of 256 MiB.
- Of the 4.8 us of a message of a quorum queue, 1.1 are its line of JSON, most of it base64; 0.5 the checksum of the \
write-ahead
  log; 0.8 the checkpoint and the replay; 0.4 the message object; 0.5 reading its command a second time; the rest are the
  iterators between them. 300 MB/s would be 3.4 us.
"""
SECTIONS = {"shared": SHARED, "live": LIVE, "folders": FOLDERS}  # rows of a section begin with its name and a colon


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table."""
    lines = [
        "| what | peer | brokerstore | the peer | unit | ratio | minimum - maximum (rounds) | target | |",
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
    for place, row in enumerate(rows):
        if row["target"] is not None:
            axes.plot([row["target"]] * 2, [place - 0.42, place + 0.42], color="black", linewidth=2)
    axes.set_xscale("log")
    axes.axvline(1, color="#999", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("times as fast as the peer (black: target)")
    axes.set_title(title)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def page(found: dict[str, Any]) -> str:
    """Return the text of the page."""
    machine = found["machine"]
    java = [row for row in found["rows"] if row["peer"] == "rocketmq"]
    others = [row for row in found["rows"] if _is_embedded(row)]
    missed = [row for row in found["rows"] if row["holds"] is False]
    named = "\n".join(
        f"- {row['name']} ({row['peer']}): {row['ratio']:.2f}, target {row['target']:.2g}.{at_best(row)}" for row in missed
    )
    lines = [
        "# Performance", "",
        f"Measured {machine['date']}: {machine['cores']} cores ({machine['cpu']}), Linux {machine['kernel']},",
        f"Python {machine['python']}.",
        "Generated by `make bench-peers` and `python -m bench.peers.page`: change those, not this page. What was",
        "measured while tuning is in the [performance notes](evidence/performance-notes.md).", "", NOISE,
        "## Against RocketMQ's store", "", "![ratios to RocketMQ's store](performance-rocketmq.svg)", "", *table(java), "",
        *_embedded(others), *(section(found, name) for name in SECTIONS), NODES,
        WHY.format(missed=named or "No target is missed."), SETUP,
    ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def _embedded(rows: list[dict[str, Any]]) -> list[str]:
    """Return the section about the embedded stores."""
    head = ["## Against embedded stores, and against growth", ""]
    if not rows:
        return [*head, "Not measured yet: `make bench-peers GROUP=embedded`, `GROUP=growth`, `GROUP=memory`.", ""]
    return [*head, "![ratios to embedded stores](performance-embedded.svg)", "", *table(rows), ""]


def _is_embedded(row: dict[str, Any]) -> bool:
    return row["peer"] != "rocketmq" and row["name"].partition(":")[0] not in SECTIONS


def section(found: dict[str, Any], name: str) -> str:
    """Return one of the sections; empty if it was not measured."""
    rows = [row for row in found["rows"] if row["name"].startswith(f"{name}: ")]
    if not rows:
        return ""
    machine = found["machine"]
    where = f"Measured {machine['date']} on {machine['cores']} cores, at a load of {machine['load']}"
    return SECTIONS[name].format(where=where, table="\n".join(table(rows)))


def with_section(text: str, name: str, section: str) -> str:
    """Return a page with this section, in place of the one it has."""
    head = SECTIONS[name].partition("\n")[0]
    before, found, rest = text.partition(head)
    if found:
        rest = "## " + rest.partition("\n## ")[2]
    else:
        before, found, rest = text.partition(WHY.partition("\n")[0])
        rest = found + rest
    return f"{before}{section}\n{rest}"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.page")
    parser.add_argument("json", type=Path)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    parser.add_argument("--section", choices=SECTIONS, help="replace only this section")
    arguments = parser.parse_args()
    found = json.loads(arguments.json.read_text())
    if arguments.section:
        path = arguments.docs / "performance.md"
        path.write_text(with_section(path.read_text(), arguments.section, section(found, arguments.section)))
        return
    (arguments.docs / "performance.md").write_text(page(found))
    plots = (
        ("rocketmq", "brokerstore against RocketMQ's store", lambda row: row["peer"] == "rocketmq"),
        ("embedded", "brokerstore against embedded stores", _is_embedded),
    )
    for name, title, is_meant in plots:
        rows = [row for row in found["rows"] if is_meant(row)]
        if rows:
            plot(rows, arguments.docs / f"performance-{name}.svg", title)


if __name__ == "__main__":
    main()
