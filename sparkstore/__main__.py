"""`python -m sparkstore JOB ...`, and the same file for `spark-submit`.

Results go to stdout, progress and diagnostics to stderr.  Exit codes are the tool's: 0 clean, 1 problem found,
2 wrong use, 3 not a store, 4 in use, 5 input or output failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from brokerstore.tool.codes import CLEAN, INTERRUPTED, PROBLEM, WRONG_USE, exit_code
from brokerstore.tool.escapes import escaped_stderr, escaped_traceback
from brokerstore.tool.output import emit, emit_json, print_line
from sparkstore.errors import BadOption, MissingColumn, UnknownColumn
from sparkstore.jobs.statistics import BY
from sparkstore.spark_errors import JobError, is_wrong_use
from storageio import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(arguments: list[str] | None = None) -> int:
    """Run one job and return the exit code."""
    with escaped_stderr():
        return _run(_parser().parse_args(arguments))


def _run(arguments: argparse.Namespace) -> int:
    """Run the job; report each error of this library in one line."""
    began = time.monotonic()
    try:
        spark = session(arguments)
        code: int = arguments.run(spark, arguments)
    except StoreError as error:
        if arguments.trace:
            raise
        print_line(f"sparkstore: {error}")
        return _code_of(error.kind if isinstance(error, JobError) else type(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if not is_wrong_use(error):
            sys.excepthook = escaped_traceback
            raise
        print_line(f"sparkstore: {str(error).strip().splitlines()[0]}")
        return WRONG_USE
    print_line(f"{arguments.job}: done in {time.monotonic() - began:.1f} s")
    return code


def _code_of(kind: type[StoreError]) -> int:
    if issubclass(kind, (BadOption, MissingColumn, UnknownColumn)):
        return WRONG_USE
    return exit_code(kind.__new__(kind))


def session(arguments: argparse.Namespace) -> SparkSession:
    """Return the session of `spark-submit`, of a Spark Connect server, or a new local one."""
    from sparkstore.session import session as start

    is_shown = sys.stderr.isatty() and not arguments.quiet
    settings = {} if arguments.remote else {"spark.ui.showConsoleProgress": str(is_shown).lower()}
    name = f"brokerstore {arguments.job}"
    return start(arguments.master, remote=arguments.remote, app_name=name, settings=settings, trace=arguments.trace)


def run_audit(spark: SparkSession, arguments: argparse.Namespace) -> int:
    """Print the audit report; return 1 if there are problems."""
    from sparkstore.jobs.auditing import audit

    report = audit(spark, arguments.path, tasks=arguments.tasks, **_options(arguments))
    if arguments.json:
        emit_json(report.to_dict())
    else:
        for line in report.lines():
            emit(line)
    return CLEAN if report.is_ok else PROBLEM


def run_reindex(spark: SparkSession, arguments: argparse.Namespace) -> int:
    """Rebuild queues and index."""
    from sparkstore.jobs.reindexing import ALL, reindex

    made = reindex(
        spark,
        arguments.path[0],
        ALL if arguments.what == "all" else (arguments.what,),
        tasks=arguments.tasks,
        **_options(arguments),
    )
    counts = {"units": made.units, "items": made.items}
    text = f"Rebuilt {' and '.join(made.what)}: {made.units} units, {made.items} index items"
    _answer(arguments, {"path": made.path, "rebuilt": made.what, **counts}, text)
    return CLEAN


def run_export(spark: SparkSession, arguments: argparse.Namespace) -> int:
    """Export to Parquet files."""
    from sparkstore.jobs.exporting import export

    columns = arguments.columns.split(",") if arguments.columns else None
    made = export(
        spark, arguments.path, arguments.to, columns=columns, json=arguments.body_json, mode=arguments.mode,
        is_rabbit=arguments.rabbit or None, **_options(arguments),
    )  # fmt: skip
    size = "" if made.size_bytes is None else f" of {made.size_bytes} bytes"
    text = f"{made.messages} messages{size} in {made.files} files in {made.out}"
    _answer(arguments, made._asdict(), text)
    return CLEAN


def run_stats(spark: SparkSession, arguments: argparse.Namespace) -> int:
    """Print a table, or one JSON object per line."""
    from sparkstore.jobs.auditing import table
    from sparkstore.jobs.statistics import stats
    from sparkstore.spark_errors import plain_errors

    with plain_errors():
        frame = stats(spark, arguments.path, arguments.by, **_options(arguments))
        rows = (frame.limit(arguments.limit) if arguments.limit else frame).collect()
    if arguments.json:
        for row in rows:
            emit_json(row.asDict())
    else:
        for line in table(frame.columns, [[str(cell) for cell in row] for row in rows]):
            emit(line)
    return CLEAN


def run_compact(spark: SparkSession, arguments: argparse.Namespace) -> int:
    """Compact into a new store."""
    from sparkstore.jobs.compacting import compact

    count = compact(spark, arguments.path[0], arguments.to, keep_unkeyed=not arguments.drop_unkeyed, **_options(arguments))
    _answer(arguments, {"out": arguments.to, "messages": count}, f"{count} messages written to {arguments.to}")
    return CLEAN


def _answer(arguments: argparse.Namespace, facts: dict[str, Any], text: str) -> None:
    """Print the result of a job as JSON or text."""
    if arguments.json:
        emit_json(facts)
    else:
        emit(text)


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the `--option name=value` pairs as options of the source."""
    pairs = [text.partition("=") for text in arguments.option]
    wrong = [name for name, sign, _ in pairs if not sign]
    if wrong:
        raise BadOption(f"--option {wrong[0]}: expected name=value")
    return {name: value for name, _, value in pairs}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sparkstore", description="Jobs over whole RocketMQ and RabbitMQ stores, on Spark.")
    jobs = parser.add_subparsers(dest="job", required=True)
    _job(jobs, "audit", run_audit, "verify every checksum, unit and index item; find gaps and duplicates", many=True)
    reindex = _job(jobs, "reindex", run_reindex, "rebuild queues and index from the log")
    reindex.add_argument("what", nargs="?", choices=("consumequeue", "index", "all"), default="all")
    export = _job(jobs, "export", run_export, "write Parquet files, partitioned by topic and day", many=True)
    export.add_argument("--to", required=True, metavar="OUT", help="folder or URL that Spark can write")
    export.add_argument("--columns", help="columns to write, separated by commas")
    export.add_argument("--body-json", metavar="SCHEMA", help='a column with the parsed body: a schema as text, or "variant"')
    export.add_argument("--mode", choices=("error", "append", "overwrite", "ignore"), default="error")
    export.add_argument(
        "--rabbit", action="store_true", help="the paths are RabbitMQ folders (found out without this option too)"
    )
    stats = _job(jobs, "stats", run_stats, "count messages and bytes", many=True)
    stats.add_argument("--by", choices=BY, help="default: topic, or queue of a RabbitMQ folder")
    stats.add_argument("--limit", type=int, help="maximum number of rows to show")
    compact = _job(jobs, "compact", run_compact, "copy the last message of each key to a new store")
    compact.add_argument("--to", required=True, metavar="NEW", help="folder of the new store")
    compact.add_argument("--drop-unkeyed", action="store_true", help="drop messages without a key")
    return parser


def _job(jobs: Any, name: str, run: Callable[..., int], text: str, *, many: bool = False) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = jobs.add_parser(name, help=text, description=text)
    parser.add_argument("path", nargs="+" if many else 1, help="store, or a pattern that matches several" if many else "store")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--option", "-o", action="append", default=[], metavar="NAME=VALUE", help="option of the source")
    parser.add_argument("--tasks", type=int, default=2, help="number of merge tasks (default 2)")
    parser.add_argument("--master", help="Spark master, for example local[4]")
    parser.add_argument("--remote", help="Spark Connect server, for example sc://host")
    parser.add_argument("--trace", action="store_true", help="show the stacks of errors")
    parser.add_argument("--quiet", "-q", action="store_true", help="do not show progress")
    parser.set_defaults(run=run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
