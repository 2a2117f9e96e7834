"""The job `audit`: verify checksums, compare queues and index with the log, and verify RabbitMQ folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from brokerstore.tool.escapes import printable
from brokerstore.tool.output import json_line
from consumequeue.layout import UNIT_SIZE

from ..options import check_tasks, option_texts
from ..spark_errors import plain_errors
from .protection import at_seams

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_FINDING = ("store", "file", "offset", "kind", "expected", "found")
_ORDER = ("store", "topic", "queue_id", "kind", "begin")  # "queue" sorts behind "listed" and "log_run"


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit.

    `problems` and `notes`: rows with the tool's keys of a finding, and the store.  `queues`: topic, queue id, first and last
    queue offset in the log, messages, gaps and duplicates.  `counts`: of stores, stretches, messages, bytes, units, items; of
    RabbitMQ folders stores, queues, messages, records, files.
    """

    problems: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    queues: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        """Return whether there are no problems."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return all of it in JSON's types."""
        lists = {"problems": self.problems, "notes": self.notes, "queues": self.queues}
        return {"ok": self.is_ok, **lists, "counts": self.counts}

    def to_json(self) -> str:
        """Return the report as one JSON object."""
        return json_line(self.to_dict()).rstrip("\n")

    def to_text(self) -> str:
        """Return the lines as one string."""
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return a table of queues, every problem, and the verdict as the last line; names are escaped."""
        names = ("topic", "queue_id", "first", "last", "messages", "gaps", "duplicates")
        lines = table(names, [[str(row[name]) for name in names] for row in self.queues]) if self.queues else []
        lines += [printable(f"problem: {_text(row)}") for row in self.problems]
        lines += [printable(f"note: {_text(row)}") for row in self.notes]
        verdict = "OK" if self.is_ok else f"{len(self.problems)} problem{'s' * (len(self.problems) != 1)}"
        counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.counts.items())
        return [*lines, f"{verdict}: {counts}"]

    def to_frame(self, spark: SparkSession) -> DataFrame:
        """Return the problems as a DataFrame."""
        kinds = "store string, file string, offset bigint, kind string, expected string, found string"
        return spark.createDataFrame([tuple(row[name] for name in _FINDING) for row in self.problems], kinds)


def audit(spark: SparkSession, path: str | Sequence[str], *, tasks: int = 2, **options: object) -> AuditReport:
    """Verify whole stores without changing them; damage does not stop the audit.

    Tasks check splits of the log in parallel, each against the queues and the index; `tasks` tasks then join the results of
    each queue.  Raises `UnknownStore` for a folder that is not a store.
    """
    from .audit_source import FIELDS, FORMAT, AuditSource

    check_tasks(tasks)
    spark.dataSource.register(AuditSource)
    kinds = ", ".join(f"`{name}` {kind}" for name, kind in FIELDS.items())
    with plain_errors():
        rows = spark.read.format(FORMAT).options(**option_texts(options))
        dealt = rows.load(path if isinstance(path, str) else list(path)).repartition(tasks, "store", "topic", "queue_id")
        found = dealt.sortWithinPartitions(*_ORDER).mapInArrow(join_runs, kinds).collect()
    return _report([row.asDict() for row in found])


def join_runs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join the runs of each queue, which come in log order, into one row with its gaps and duplicates.

    The row's `units` is the number of gaps, `items` the number of duplicates; each of them is also a problem.
    """
    from .audit_source import _batch

    joined = _RunJoiner()
    for batch in batches:
        rows = [out for row in batch.to_pylist() for out in joined.take(row)]
        if rows:
            yield _batch(rows)
    rest = list(joined.finish())
    if rest:
        yield _batch(rest)


class _RunJoiner:
    """Joins the rows of one queue at a time."""

    def __init__(self) -> None:
        self._open: dict[str, Any] | None = None

    def take(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Process a row; rows that do not belong to a queue pass unchanged."""
        if row["kind"] == "queue":
            yield from self._compare(row)
        elif row["kind"] not in ("log_run", "listed"):
            yield row
        elif self._is_same(row):
            yield from self._join(row)
        else:
            yield from self.finish()
            self._open = {**row, "units": 0, "items": 0}

    def finish(self) -> Iterator[dict[str, Any]]:
        """Yield the finished queue."""
        if self._open is not None:
            yield self._open
        self._open = None

    def _is_same(self, row: dict[str, Any]) -> bool:
        return self._open is not None and all(self._open[name] == row[name] for name in ("store", "topic", "queue_id"))

    def _join(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        known = self._open
        assert known is not None
        expected = known["last"] + 1
        if row["kind"] == "log_run" and row["first"] != expected:
            is_gap = row["first"] > expected
            known["units" if is_gap else "items"] += 1
            what, where = "gap" if is_gap else "duplicate", f"{row['topic']} queue {row['queue_id']}"
            yield _problem(row, row["begin"], what, f"queue offset {expected} of {where}", f"queue offset {row['first']}")
        known["last"] = max(known["last"], row["last"])
        known["count"] += row["count"]

    def _compare(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Report units of a queue after the last one that the log implies."""
        if not self._is_same(row):
            if row["last"] > 0 and row["begin"] >= row["end"]:
                yield _problem(row, 0, "dangling_queue", "records of this queue in the log", f"{row['last']} units")
            return
        assert self._open is not None
        known = self._open["last"] + 1
        if row["last"] > known:
            yield _problem(row, known * UNIT_SIZE, "dangling_unit", f"{known} units", f"{row['last']} units")


def _problem(
    row: dict[str, Any], offset: int, what: str, expected: object, found: object, file: str | None = None
) -> dict[str, Any]:
    problem = {"kind": "problem", "store": row["store"], "file": file or row["file"], "offset": offset, "what": what}
    return problem | {"expected": expected, "found": found}


def _report(rows: list[dict[str, Any]]) -> AuditReport:
    of_kind: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        of_kind.setdefault(row["kind"], []).append(row)
    ranges = of_kind.get("range", [])
    problems = of_kind.get("problem", [])
    of_logs = [row for row in ranges if row["begin"] is not None and row["begin"] >= 0]
    in_order = sorted(of_logs, key=lambda row: (row["store"], row["begin"]))
    problems += _unjoined(in_order, problems)
    notes = of_kind.get("note", [])
    for row, found in at_seams(in_order):
        (problems if found.is_problem else notes).append(_problem(row, found.offset, *found[2:5], file=found.file))
    problems = list({_position(row): row for row in reversed(problems)}.values())
    folders = of_kind.get("folder", [])
    queues = sorted(of_kind.get("log_run", []), key=lambda row: (row["store"], row["topic"], row["queue_id"]))
    counts = {name: sum(row[column] or 0 for row in ranges) for name, column in _SUMS.items()}
    counts |= {"stretches": len(ranges), "queues": len(queues), "index_files": len(of_kind.get("index", []))}
    if folders:  # of RabbitMQ
        counts = {name: sum(row[column] for row in folders) for name, column in _RABBIT_SUMS.items()}
    return AuditReport(
        sorted(map(_finding, problems), key=lambda row: (row["store"], row["file"], row["offset"])),
        sorted(map(_finding, notes), key=lambda row: (row["store"], row["file"], row["offset"])),
        [_queue(row) for row in queues],
        {"stores": len({row["store"] for row in (*ranges, *folders)}), **counts},
    )


def _position(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return a key that removes duplicate findings: every split with records of a missing queue reports it."""
    where = 0 if row["what"] == "missing_queue" else row["offset"]
    return row["store"], row["file"], row["what"], where, row["found"]


_RABBIT_SUMS = {"queues": "units", "messages": "count", "records": "items", "files": "bytes"}
_SUMS = {"messages": "count", "size_bytes": "bytes", "units": "units", "items": "items"}


def _unjoined(in_order: list[dict[str, Any]], problems: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Report two splits of an undamaged file that do not meet.

    Each split finds its first record by itself; this check excludes that it was a copy inside a body.
    """
    damaged = {row["file"] for row in problems}
    for before, after in pairwise(in_order):
        is_one_file = before["file"] == after["file"] and before["file"] not in damaged
        if is_one_file and before["end"] != after["begin"]:
            expected = f"a record at physical offset {before['end']}"
            yield _problem(after, after["begin"], "unjoined", expected, f"the next one at {after['begin']}")


def _finding(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row["what" if name == "kind" else name] for name in _FINDING}


def _queue(row: dict[str, Any]) -> dict[str, Any]:
    named = {name: row[name] for name in ("store", "topic", "queue_id", "first", "last")}
    return named | {"messages": row["count"], "gaps": row["units"], "duplicates": row["items"]}


def _text(row: dict[str, Any]) -> str:
    what = row["kind"].replace("_", " ")
    return f"{row['file']} at byte {row['offset']}: {what}: expected {row['expected']}, found {row['found']}"


def table(names: Sequence[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table; names are escaped."""
    rows = [list(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in (names, *rows)]
