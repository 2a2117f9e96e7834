"""Benchmarks of the tool: `python -m bench.tool FOLDER`, which fills a subfolder and deletes it.

They measure `dump --json` of a log of 1 GiB to /dev/null and through a pipe; `export --to parquet` beside pyarrow writing the
same table; private memory of an export in each form; time and memory of `info` on 1,000 files; and for `tail -f` the time
from a put to its line, and the share of a core when idle.  Each is the median of a few runs, with minimum and maximum;
compared sides run in turn.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from brokerstore import Message, MessageStore, StoreConfig
from commitlog.walk import LogFiles
from storageio import REAL_DISK

TOOL = [sys.executable, "-m", "brokerstore"]
ENVIRONMENT = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # an installed tool has compiled modules
RUNS = 3
BODY = 1024


def fill(folder: Path, size_bytes: int, config: StoreConfig | None = None) -> int:
    """Put messages of 1 KiB with a tag, a key and two properties; return their number."""
    noise, number = os.urandom(1 << 20), 0
    with MessageStore.open(folder, config=config or StoreConfig()) as store:
        store.create_topic("orders", queues=8)
        while number * 1200 < size_bytes:
            store.put_many([message(noise, one) for one in range(number, number + 1000)])
            number += 1000
    return number


def message(noise: bytes, number: int) -> Message:
    """Return a message; bodies hardly repeat, because some formats would store equal ones once."""
    start = 977 * number % (len(noise) - BODY)
    properties = {"region": "eu-west", "customer": str(number % 977)}
    return Message("orders", noise[start : start + BODY], tags="paid", keys=[f"order-{number}"], properties=properties)


def log_bytes(folder: Path) -> int:
    """Return the size of all records."""
    return LogFiles(REAL_DISK, [str(folder / "commitlog")]).end().offset


def seconds(job: Callable[[], object]) -> float:
    """Return the duration of one call in seconds."""
    before = time.perf_counter()
    job()
    return time.perf_counter() - before


def printed(name: str, values: list[float], unit: str) -> None:
    """Print median, minimum and maximum."""
    print(f"{name}: {statistics.median(values):.3g} {unit} ({min(values):.3g} .. {max(values):.3g})", flush=True)


def dumps(folder: Path, _work: Path) -> None:
    """Measure bytes of the log per second."""
    size = log_bytes(folder) / 1e6
    ways = {"nothing": "> /dev/null", "a pipe": "| cat > /dev/null"}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(RUNS):
        for name, way in ways.items():
            command = f"{sys.executable} -m brokerstore dump --json {folder} {way}"
            found[name].append(
                size / seconds(lambda command=command: subprocess.run(command, shell=True, check=True, env=ENVIRONMENT))
            )
    for name, rates in found.items():
        printed(f"dump --json to {name}", rates, "MB/s of log")


def exports(folder: Path, work: Path) -> None:
    """Compare the tool's whole export with pyarrow writing the resulting table from memory, with the same options."""
    import pyarrow.parquet as pq

    from brokerstore.tool.export_forms import parquet_options
    from commitlog.columns import BATCH_ROWS

    out, other = work / "ours.parquet", work / "plain.parquet"
    ours, plain = [], []
    for _ in range(RUNS):
        out.unlink(missing_ok=True)
        command = [*TOOL, "export", "-q", "--to", "parquet", "--out", str(out), str(folder)]
        ours.append(seconds(lambda command=command: subprocess.run(command, check=True, env=ENVIRONMENT)))
        table = pq.read_table(out)
        options = parquet_options(table.column_names)
        plain.append(
            seconds(lambda table=table, options=options: pq.write_table(table, other, row_group_size=BATCH_ROWS, **options))
        )
        del table
    printed("export --to parquet", ours, "s")
    printed("pyarrow writing that table", plain, "s")
    printed("share of pyarrow's rate", [b / a for a, b in zip(ours, plain, strict=True)], "")
    out.unlink()
    other.unlink()


def memories(folder: Path, work: Path) -> None:
    """Measure the peak private memory of an export in each form; the system can drop pages of the mapped log."""
    for form in ("jsonl", "csv", "arrow", "parquet"):
        out = work / f"ours.{form}"
        process = subprocess.Popen([*TOOL, "export", "-q", "--to", form, "--out", str(out), str(folder)], env=ENVIRONMENT)
        seen = [0.0]
        while process.poll() is None:
            seen.append(_private_mb(process.pid))
            time.sleep(0.02)
        assert process.returncode == 0
        out.unlink()
        printed(f"export --to {form}, private memory", [max(seen)], "MB")


def _private_mb(pid: int) -> float:
    """Return the private memory of a process, or 0 if it ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000


def infos(work: Path) -> None:
    """Measure `info` on a log of 1,000 files."""
    folder = work / "many"
    config = StoreConfig().but(mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=20_000)
    fill(folder, 1000 * (1 << 16), config)
    files = len(list((folder / "commitlog").iterdir()))
    times, sizes = [], []
    for _ in range(8):
        _child([*TOOL, "info", "--json", str(folder)], sizes)
        times.append(
            1000 * seconds(lambda: subprocess.run([*TOOL, "info", str(folder)], env=ENVIRONMENT, stdout=subprocess.DEVNULL))
        )
    printed(f"info on {files} log files", times[1:], "ms")  # the first run writes the compiled modules
    printed("its memory at most", sizes, "MB")
    shutil.rmtree(folder)


MEASURE = """
import os, sys
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
_, status, used = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet), 0)
print(used.ru_maxrss)
sys.exit(status != 0)
"""


def _child(command: list[str], sizes: list[float]) -> None:
    """Run a command and append its peak resident memory.

    A small process starts it, because a child's peak includes that of its parent before exec.
    """
    measured = subprocess.run(
        [sys.executable, "-S", "-c", MEASURE, *command], env=ENVIRONMENT, stdout=subprocess.PIPE, check=True
    )
    sizes.append(int(measured.stdout) / 1000)


def tails(work: Path) -> None:
    """Measure a follower in a process of its own beside a writer in this one."""
    with MessageStore.open(work / "followed", config=StoreConfig.small()) as store:
        store.put(Message("orders", b"first", queue_id=0))
        command = [*TOOL, "tail", "-f", "--json", str(work / "followed")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(2)  # it prints the last messages before it starts to follow
        late = []
        for pause_s in [0.11] * 40 + [1.3] * 10:  # busy, then idle
            time.sleep(pause_s)
            before = time.perf_counter()
            store.put(Message("orders", b"next", queue_id=0))
            process.stdout.readline()
            late.append(1000 * (time.perf_counter() - before))
        printed("tail -f, from put to line", late, "ms")
        time.sleep(1)
        before_s, started = _processor_s(process.pid), time.perf_counter()
        time.sleep(8)
        printed(
            "tail -f, idle", [100 * (_processor_s(process.pid) - before_s) / (time.perf_counter() - started)], "% of a core"
        )
        process.kill()
        process.wait()


def _processor_s(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(arguments: list[str]) -> int:
    """Run `FOLDER [dump] [export] [memory] [info] [tail]`; without a name, all of them."""
    work = Path(arguments[0]) / "bench-tool"
    requested = arguments[1:] or ["dump", "export", "memory", "info", "tail"]
    work.mkdir(parents=True)
    try:
        if {"dump", "export", "memory"} & set(requested):
            fill(work / "big", (1 << 30) - (1 << 24))
        for name, job in (("dump", dumps), ("export", exports), ("memory", memories)):
            if name in requested:
                job(work / "big", work)
        for name, alone in (("info", infos), ("tail", tails)):
            if name in requested:
                alone(work)
    finally:
        shutil.rmtree(work)
    print(f"peak of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
