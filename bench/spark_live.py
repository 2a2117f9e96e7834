"""Follow a store beside its writer for minutes, into a store and into Parquet, while drivers and executors are killed.

    python -m bench.spark_live [--minutes 10] [--rate 2000] [--master "local-cluster[2,1,1024]"] [--folder DIR]

The writer puts numbered messages at `--rate` a second, rolls files of 4 MiB, and deletes all but the newest `--keep-bytes`.
At `--rate 0` it writes as fast as it can.  No disk holds what it could write in ten minutes, so it nearly stops while the
slower query is half of `--keep-bytes` behind; for how long is printed.
About every `--every` seconds, mostly only after the slower query has committed a batch since the last time, one of the
query's processes is killed: the driver with everything below it, a worker, or an executor.  A query that ends because of that
is started again from its checkpoint; an error of this library ends the run.  In the end each number must be in both results
exactly once; otherwise the program ends with 1.  It prints the lag that Spark's progress reported: bytes of the log that no
batch had, and the age of a batch's newest record.  Part of `make spark-night`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from commitlog import Message
from messagestore import MessageStore, StoreConfig

SMALL = StoreConfig(
    mapped_file_size_commit_log=4 << 20, mapped_file_size_consume_queue=200_000, max_hash_slot_num=10_000, max_index_num=40_000
)
SINK = {
    "mappedFileSizeCommitLog": "16m",
    "mappedFileSizeConsumeQueue": "2m",
    "maxHashSlotNum": "10000",
    "maxIndexNum": "400000",
}
BODY_BYTES = 200
AT_ONCE = 500  # messages of a put at full speed
ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {
    "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g", "spark.driver.host": "127.0.0.1", "spark.executor.memory": "600m", "spark.cores.max": "2",
    "spark.python.authenticate.socketTimeout": "120s",
}  # fmt: skip
MASTER = "local[2,4]"
KINDS = ("store", "parquet")
# This file exists while the queries run.  A worker killed earlier ends the driver, because Spark looks up formats only once.
STARTED = "started"


def write(folder: Path, rate: int, keep_bytes: int) -> None:
    """Put messages until the file `stop` exists, and print how many there are, and for how many seconds no put was due."""
    number, end, waited_s = 0, 0, 0.0
    with MessageStore.open(folder / "source", config=SMALL) as store:
        began = time.monotonic()
        while not (folder / "stop").exists():
            due = int((time.monotonic() - began) * rate)
            if not rate:  # a writer that stops leaves its last three seconds unread: see `sparkstore.source.log_position`
                due = number + (AT_ONCE if end - committed_offset(folder) < keep_bytes // 2 else 1)
            if due <= number + (not rate):
                time.sleep(0.02)
                waited_s += 0.02
            if due <= number:
                continue
            made = store.put_many([Message("numbers", b"%d " % one + bytes(BODY_BYTES)) for one in range(number, due)])
            number, end = due, made.physical_offset
            store.delete_before(max(0, end - keep_bytes))
        print(json.dumps({"written": number, "seconds": time.monotonic() - began, "waited": waited_s}), flush=True)


def committed_offset(folder: Path) -> int:
    """Return the physical offset before which both queries have committed every message."""
    found = []
    for kind in KINDS:
        commits = [int(path.name) for path in (folder / f"{kind}-checkpoint" / "commits").glob("[0-9]*")]
        offsets = folder / f"{kind}-checkpoint" / "offsets" / str(max(commits, default=-1))
        found.append(json.loads(offsets.read_text().splitlines()[-1])["physical_offset"] if commits else 0)
    return min(found)


def drive(folder: Path, master: str) -> None:
    """Run both queries until the file `drain` exists, then read what is left and print what both results have."""
    import sparkstore.spark_errors

    spark = sparkstore.session(master, settings=SETTINGS | {"spark.local.dir": str(folder / "local")})
    queries = {kind: start(spark, folder, kind) for kind in KINDS}
    (folder / STARTED).touch()
    seen: set[tuple[str, int]] = set()
    while not (folder / "drain").exists():
        for kind, query in list(queries.items()):
            if not query.isActive:
                if sparkstore.spark_errors.find_store_error(str(query.exception())):
                    raise SystemExit(f"a query ended: {query.exception()}")
                print(json.dumps({"restarted": kind, "because": str(query.exception())[:500]}), flush=True)
                queries[kind] = start(spark, folder, kind)
            report(queries[kind].lastProgress, seen)
        time.sleep(0.2)
    for query in queries.values():
        query.stop()
    for kind in KINDS:
        drain(spark, folder, kind)
    stored = sparkstore.read_messages(spark, str(folder / "store"), ["body"])
    for kind, rows in (("store", stored), ("parquet", spark.read.parquet(str(folder / "parquet")))):
        numbers = rows.selectExpr("bigint(split(string(body), ' ')[0]) number")
        found = numbers.selectExpr("count(*) rows", "count(DISTINCT number) numbers", "max(number) last").collect()[0]
        print(json.dumps({"result": kind, **found.asDict()}), flush=True)
    spark.stop()


def start(spark: Any, folder: Path, kind: str, **trigger: Any) -> Any:
    """Start one query; it continues from its checkpoint."""
    frame = spark.readStream.format("brokerstore").option("columns", "topic,body").option("maxBytesPerTrigger", "64m")
    writer = frame.load(str(folder / "source")).writeStream.queryName(kind)
    writer = writer.option("checkpointLocation", str(folder / f"{kind}-checkpoint"))
    writer = writer.format("brokerstore").options(**SINK) if kind == "store" else writer.format("parquet")
    return writer.trigger(**(trigger or {"processingTime": "1 second"})).start(str(folder / kind))


def drain(spark: Any, folder: Path, kind: str) -> None:
    """Read what is left.  An error that is not this library's may be what a kill left behind: it gets another run."""
    from pyspark.errors import StreamingQueryException

    import sparkstore.spark_errors

    for is_last in (False, False, True):
        try:
            start(spark, folder, kind, availableNow=True).awaitTermination()
            return
        except StreamingQueryException as error:
            if is_last or sparkstore.spark_errors.find_store_error(str(error)):
                raise
            print(json.dumps({"restarted": kind, "because": str(error)[:500]}), flush=True)


def report(progress: Any, seen: set[tuple[str, int]]) -> None:
    """Print the lag of a batch once."""
    if not progress or (progress["name"], progress["batchId"]) in seen or not progress["numInputRows"]:
        return
    seen.add((progress["name"], progress["batchId"]))
    source = progress["sources"][0]
    latest, end = (json.loads(source[name]) or {} for name in ("latestOffset", "endOffset"))  # Spark reports a null at first
    lag = {"backlog_bytes": latest.get("backlog_bytes", 0), "rows": progress["numInputRows"]}
    if "stand" in end:
        lag["age_ms"] = int(time.time() * 1000) - end["stand"]["store_timestamp_ms"]
    print(json.dumps({"query": progress["name"], **lag}), flush=True)


class Run:
    """The processes of one run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = Path(options.folder)
        self.chance = random.Random(options.seed)
        self.committed = 0
        kinds = ("driver", "worker") if options.master.startswith("local[") else ("driver", "worker", "executor")
        self.kills = dict.fromkeys(kinds, 0)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.log: IO[str] = (self.folder / "drivers.txt").open("w+")

    def begin(self, role: str, **streams: Any) -> subprocess.Popen[str]:
        words = [role, "--folder", str(self.folder), "--rate", str(self.options.rate), "--master", self.options.master]
        words += ["--keep-bytes", str(self.options.keep_bytes)]
        command = [sys.executable, "-m", "bench.spark_live", *words]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
        return subprocess.Popen(command, text=True, start_new_session=True, env=environment, cwd=ROOT, **streams)

    def driver(self) -> subprocess.Popen[str]:
        (self.folder / STARTED).unlink(missing_ok=True)
        return self.begin("drive", stdout=self.log, stderr=(self.folder / "errors.txt").open("a"))

    def go(self) -> dict[str, Any]:
        """Run, kill, drain, and return what the writer printed."""
        writer = self.begin("write", stdout=subprocess.PIPE)
        while not (self.folder / "source" / "checkpoint").exists():
            time.sleep(0.1)
        driver, ends = self.driver(), time.monotonic() + self.options.minutes * 60
        try:
            while time.monotonic() < ends:
                time.sleep(self.options.every * self.chance.uniform(0.5, 1.5))
                driver = self.kill(driver)
        finally:
            (self.folder / "stop").touch()
        answer, _ = writer.communicate(timeout=120)
        (self.folder / "drain").touch()
        if driver.wait(timeout=900) != 0:
            raise SystemExit(f"the last driver ended with {driver.returncode}: {self.folder / 'errors.txt'}")
        written: dict[str, Any] = json.loads(answer)
        return written

    def wait_for_batches(self, driver: subprocess.Popen[str]) -> None:
        """Wait until the slower query has committed more: on a busy machine Java alone may take longer than `--every`."""
        latest = time.monotonic() + 300
        while committed_offset(self.folder) == self.committed and driver.poll() is None and time.monotonic() < latest:
            time.sleep(0.2)
        self.committed = committed_offset(self.folder)

    def kill(self, driver: subprocess.Popen[str]) -> subprocess.Popen[str]:
        """Kill one process of the query, each kind in turn; a driver is started again."""
        name = min(self.kills, key=lambda name: (self.kills[name], self.chance.random()))
        if name != "driver" or self.chance.random() < 0.75:  # the others may hit a driver that is starting
            self.wait_for_batches(driver)
        if driver.poll() is not None:
            raise SystemExit(f"the driver ended with {driver.returncode}: {self.folder / 'errors.txt'}")
        if name == "driver":
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
            self.kills[name] += 1
            return self.driver()
        found = processes_of(driver.pid)[name]
        if found and (self.folder / STARTED).exists():
            os.kill(self.chance.choice(found), signal.SIGKILL)
            self.kills[name] += 1
        return driver


def processes_of(group: int) -> dict[str, list[int]]:
    """Return the Python workers and the executors of a driver's session, which is its process group."""
    found: dict[str, list[int]] = {"worker": [], "executor": []}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == group:
                command = (entry / "cmdline").read_bytes()
                if b"-m\0pyspark.daemon" in command:
                    found["worker"].append(int(entry.name))
                elif b"CoarseGrainedExecutorBackend" in command:
                    found["executor"].append(int(entry.name))
        except (OSError, ProcessLookupError):
            continue
    return found


def judge(run: Run, measured: dict[str, Any]) -> bool:
    """Print lag and verdict; return whether both results have every number once."""
    run.log.seek(0)
    lines = [json.loads(line) for line in run.log if line.startswith("{")]
    for query in KINDS:
        batches = [line for line in lines if line.get("query") == query]
        ages = [line["age_ms"] / 1000 for line in batches if "age_ms" in line] or [0.0]
        backlog = [line["backlog_bytes"] / 1e6 for line in batches] or [0.0]
        age = f"age of the newest record {statistics.median(ages):.1f} s (at most {max(ages):.1f} s)"
        bytes_left = f"backlog {statistics.median(backlog):.1f} MB (at most {max(backlog):.1f} MB)"
        print(f"{query}: {len(batches)} batches; {age}; {bytes_left}")
    written = measured["written"]
    results = {line["result"]: line for line in lines if "result" in line}
    expected = {"rows": written, "numbers": written, "last": written - 1}
    right = all({name: results.get(kind, {}).get(name) for name in expected} == expected for kind in KINDS)
    killed = ", ".join(f"{count} {name}s" for name, count in run.kills.items())
    again = sum("restarted" in line for line in lines)
    seconds = measured["seconds"]
    pace = f"{written / seconds:.0f} a second; the writer waited for {measured['waited'] / seconds:.0%} of the time"
    print(f"{written} messages written, {pace}; killed: {killed}; queries started again: {again}")
    print("each is in both results once" if right else results)
    return right


def main() -> int:
    """Run the asked role."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", nargs="?", choices=("run", "write", "drive"), default="run", help=argparse.SUPPRESS)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=int, default=2000, help="messages a second; 0: as fast as possible")
    parser.add_argument("--every", type=float, default=30, help="seconds between two kills")
    parser.add_argument("--keep-bytes", type=int, default=256 << 20)
    parser.add_argument("--master", default=MASTER)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", default="/tmp/bench-spark-live")
    options = parser.parse_args()
    if options.role == "write":
        write(Path(options.folder), options.rate, options.keep_bytes)
    elif options.role == "drive":
        drive(Path(options.folder), options.master)
    else:
        run = Run(options)
        return 0 if judge(run, run.go()) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
