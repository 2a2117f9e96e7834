"""Speed of `dump --json` for a queue of each type of RabbitMQ 4, beside a plain scan of the same files, in turn.

    python -m bench.rabbitmq.dump [MIB [BODY SIZE [ROUNDS [TYPE ...]]]]

Default: 1024 MiB of bodies, 1 KiB each, 5 rounds, all types.  The plain scan reads every file and computes CRC-32.  Both run in
processes of their own, with the page cache warm, and write to /dev/null.  Rates are MB of bodies a second: median, least and
greatest.  Quorum queues and streams are written by the tables of the format pages, classic queues by `RabbitStore`.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from rabbitstore import RabbitSettings, RabbitStore
from rabbitstore.quorum.encode import FIRST_ENTRY, SEGMENT_ENTRIES, LogEntry, new_leader, segment_pieces
from rabbitstore.stream import layout
from tests.rabbitstore.quorum.test_command_reader import TIME_MS, entry, route

TOOL = [sys.executable, "-m", "brokerstore"]
SCAN = """import sys, zlib
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        while data := file.read(1 << 20):
            zlib.crc32(data)
"""
UID, NODE = "2F_QBENCHAAAAAAAA", "rabbit@localhost"
CONFIG = f"""#{{id => {{'%2F_bench','{NODE}'}},cluster_name => '%2F_bench',uid => <<"{UID}">>,
  machine => {{module,rabbit_fifo,#{{name => '%2F_bench',queue_resource => {{resource,<<"/">>,queue,<<"bench">>}}}}}},
  initial_members => [{{'%2F_bench','{NODE}'}}],log_init_args => #{{uid => <<"{UID}">>}},
  metrics_key => {{resource,<<"/">>,queue,<<"bench">>}}}}.
"""
BLOCK = b"\x80\x00\x0atext/plain"  # content_type
CHUNK_MESSAGES, STREAM_SEGMENT = 100, 500_000_000
VERSION = 4  # of the queue machine


def bodies(count: int, size: int) -> Iterator[bytes]:
    """Yield bodies that do not repeat."""
    noise = os.urandom(1 << 20)
    for number in range(count):
        start = 977 * number % (len(noise) - size)
        yield noise[start : start + size]


def classic(node: Path, count: int, size: int) -> None:
    """Publish to a classic queue of version 2 and abandon it, as a kill does."""
    store = RabbitStore.open(str(_vhost(node)), settings=RabbitSettings(memory_limit_bytes=64 << 20))
    store.declare_queue("bench")
    for number, body in enumerate(bodies(count, size), 1):
        store.publish("bench", body)
        if number % 20_000 == 0:
            store.sync()
    store.sync()
    store.abandon()


def quorum(node: Path, count: int, size: int) -> None:
    """Write the segments of a quorum queue."""
    RabbitStore.open(str(_vhost(node))).close()
    folder = node / "quorum" / NODE / UID
    folder.mkdir(parents=True)
    (folder / "config").write_text(CONFIG)
    log = [LogEntry(0, 0, lambda: FIRST_ENTRY), LogEntry(1, 1, lambda: new_leader(TIME_MS, VERSION))]
    pairs = [*route(keys=(b"bench",)), b"w\1dw\4true"]
    for number, body in enumerate(bodies(count, size), 1):
        data = entry(pairs=pairs, fragments=(body,), sequence_number=number, size=size, block=BLOCK)
        log.append(LogEntry(number + 1, 1, data.__bytes__))
        if len(log) == SEGMENT_ENTRIES:
            _segment(folder, log)
    if log:
        _segment(folder, log)


def _segment(folder: Path, log: list[LogEntry]) -> None:
    number = len(list(folder.glob("*.segment"))) + 1
    (folder / f"{number:08}.segment").write_bytes(b"".join(segment_pieces(log)))
    log.clear()


def stream(node: Path, count: int, size: int) -> None:
    """Write the segments and indexes of a stream, a chunk for each hundred messages."""
    RabbitStore.open(str(_vhost(node))).close()
    folder = node / "stream" / "__bench_1795679985642308585"
    folder.mkdir(parents=True)
    annotations = b"\x0ax-exchange\xa1\x00\xa3\x0dx-routing-key\xa1\x05bench"
    head = b"\x00Sp\xc0\x06\x05A@@AC\x00Sr\xc1" + bytes((len(annotations) + 2, 4)) + b"\xa3" + annotations
    head += b"\x00Ss\xc0\x13\x07@@@@@@\xa3\x0atext/plain\x00Su\xb0" + size.to_bytes(4, "big")
    messages = (len(head + body).to_bytes(4, "big") + head + body for body in bodies(count, size))
    offset = 0
    while offset < count:
        name = f"{offset:020}"
        with (folder / f"{name}.segment").open("wb") as segment, (folder / f"{name}.index").open("wb") as index:
            segment.write(layout.FILE_HEAD.pack(layout.SEGMENT_MAGIC, layout.FILE_VERSION))
            index.write(layout.FILE_HEAD.pack(layout.INDEX_MAGIC, layout.FILE_VERSION))
            while offset < count and segment.tell() < STREAM_SEGMENT:
                number = min(CHUNK_MESSAGES, count - offset)
                data = b"".join(next(messages) for _ in range(number))
                index.write(layout.INDEX_RECORD.pack(offset, TIME_MS, 1, segment.tell(), layout.USER))
                fields = (0x50, layout.USER, number, number, TIME_MS, 1, offset, zlib.crc32(data), len(data), 0, 0, bytes(3))
                segment.write(layout.CHUNK_HEAD.pack(*fields) + data)
                offset += number


def _vhost(node: Path) -> Path:
    return node / "msg_stores" / "vhosts" / "628WB79CIFDYO9LJI6DKMI09L"


def seconds(command: list[str]) -> float:
    """Run a command and return its duration."""
    before = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - before


def measure(name: str, fill: Callable[[Path, int, int], None], folder: Path, total: int, size: int, rounds: int) -> None:
    """Print a row for a type of queue."""
    node, count = folder / name, total // size
    fill(node, count, size)
    dump = [*TOOL, "dump", "--json", "--queue", "bench", str(node)]
    lines = int(subprocess.run(f"{' '.join(dump)} | wc -l", shell=True, check=True, capture_output=True).stdout)
    assert lines == count, (lines, count)
    files = sorted(str(file) for file in node.rglob("*") if file.is_file())
    scan = [sys.executable, "-c", SCAN, *files]
    seconds(scan)
    found: list[list[float]] = [[], []]
    for _ in range(rounds):
        for rates, command in zip(found, (dump, scan), strict=True):
            rates.append(count * size / seconds(command) / 1e6)
    texts = [f"{statistics.median(rates):.0f} ({min(rates):.0f} .. {max(rates):.0f})" for rates in found]
    ratios = [ours / plain for ours, plain in zip(*found, strict=True)]
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f})"
    print(f"| {name} | {count:,} x {size} B | {texts[0]} | {texts[1]} | {ratio} |", flush=True)
    shutil.rmtree(node)


def main(arguments: list[str]) -> None:
    """Fill a temporary folder and print a table."""
    total, size, rounds = (int(text) for text in [*arguments[:3], *("1024", "1024", "5")[len(arguments) :]])
    types = {"classic": classic, "quorum": quorum, "stream": stream}
    print("| type | messages | dump, MB/s | plain scan, MB/s | ratio |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments[3:] or types:
            measure(name, types[name], Path(folder), total << 20, size, rounds)


if __name__ == "__main__":
    main(sys.argv[1:])
