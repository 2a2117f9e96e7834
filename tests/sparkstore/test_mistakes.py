"""Usual mistakes of a new user: each is answered in at most three lines, with what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import sparkstore
from messagestore import MessageStore
from sparkstore import spark_errors
from sparkstore.jobs import audit, export, reindex, stats
from sparkstore.source.data_source import BrokerStoreSource
from sparkstore.source.worker import HIDE, is_worker
from storageio import DiskError, MissingExtra, StoreError, UnknownStore

from .conftest import JAVA_OPTIONS, ROOT, why_not
from .local import batches, dumped
from .stores import SMALL, damage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

LINES_MAX = 3


def load(spark: SparkSession, path: object, schema: str | None = None, **options: str) -> None:
    """Read every row of a store."""
    reader = spark.read.format("brokerstore").options(**options)
    (reader.schema(schema) if schema else reader).load(str(path)).collect()


def save(spark: SparkSession, path: object, columns: str, mode: str = "append") -> None:
    """Write two rows to a store."""
    spark.range(2).selectExpr(*columns.split(", ")).write.format("brokerstore").mode(mode).save(str(path))


MISTAKES: dict[str, tuple[Callable[[Any, Path, Path], object], str]] = {
    "no folder": (lambda spark, _made, tmp: load(spark, tmp / "absent"), "absent: no such folder"),
    "no store": (lambda spark, _made, tmp: load(spark, tmp / "other"), "other: "),
    "a pattern without a match": (lambda spark, _made, tmp: load(spark, f"{tmp}/x*"), "no folder matches this pattern"),
    "a mistyped option": (lambda spark, made, _: load(spark, made, colour="red"), "unknown option 'colour'; the options are"),
    "a wrong value": (lambda spark, made, _: load(spark, made, splitBytes="big"), "splitBytes: expected a number of bytes"),
    "an unknown column": (lambda spark, made, _: load(spark, made, "subject string"), "unknown column 'subject' of a RocketMQ"),
    "a wrong type": (lambda spark, made, _: load(spark, made, "topic int"), "column 'topic': expected string, found int"),
    "no driver of an object store": (lambda spark, _made, _: load(spark, "s3://bucket/store"), "pip install s3fs"),
    "no driver of HDFS": (lambda spark, _made, _: load(spark, "hdfs://host/store"), "reading hdfs:// needs"),
    "a sink without its columns": (lambda spark, made, _: save(spark, made, "id"), "column"),
    "an overwritten log": (
        lambda spark, made, _: save(spark, made, "'t' topic, 'b' body", "overwrite"),
        "a log cannot be overwritten: use mode append",
    ),
    "a job on no store": (lambda spark, _made, tmp: audit(spark, str(tmp / "absent")), "absent: no such folder"),
    "statistics by nothing known": (lambda spark, made, _: stats(spark, str(made), "colour"), "by: expected one of topic"),
    "a reindex of part of a log": (
        lambda spark, made, _: reindex(spark, str(made), topic="topic-1"),
        "option topic: a reindex reads every record, so remove this option",
    ),
    "an export over another": (lambda spark, made, tmp: export(spark, str(made), str(tmp / "other")), "already exists"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_usage_error_is_at_most_three_lines(spark: SparkSession, made: Path, tmp_path: Path, name: str) -> None:
    """The text says what to do; neither Python's nor Java's stack is in it."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    shutil.copytree(made, tmp_path / "again") if name == "a stream of two stores" else None
    attempt, text = MISTAKES[name]
    with pytest.raises(Exception) as caught:
        attempt(spark, made, tmp_path)
    plain = spark_errors.plain_error(caught.value)
    shown = str(caught.value if plain is None else plain)
    assert text in shown
    assert len(shown.strip().splitlines()) <= LINES_MAX
    assert 'File "' not in str(caught.value), "the worker sent a stack"


def test_the_error_for_a_damaged_record_has_file_offset_and_next_step(spark: SparkSession, made: Path) -> None:
    """An executor's error is one line too; the option `trace` brings the stack back."""
    file, at = damage(made, dumped(made)[700])
    with pytest.raises(Exception) as caught:
        load(spark, made)
    assert 'File "' not in str(caught.value)
    plain = str(spark_errors.plain_error(caught.value))
    assert f"{file} at byte {at}: bad body crc" in plain and "badRecords=skip" in plain and len(plain.splitlines()) == 1
    with pytest.raises(Exception, match='File "'):
        load(spark, made, trace="true")


def test_a_folder_that_an_executor_does_not_see(made: Path, tmp_path: Path) -> None:
    """It is no loss by retention, and `failOnDataLoss` does not hide it."""
    reader = BrokerStoreSource({"path": str(made), "failOnDataLoss": "false"})
    planned = reader.reader(reader.schema())
    partitions = planned.partitions()
    made.rename(tmp_path / "elsewhere")
    with pytest.raises(
        UnknownStore, match=r"not found on executor \S+: the store must be on storage that every executor mounts"
    ):
        list(planned.read(partitions[0]))


def test_a_rabbitmq_folder_that_an_executor_does_not_see(fixture_store: Any, tmp_path: Path) -> None:
    """The error has the same sentence."""
    store = Path(shutil.copytree(fixture_store("rabbitmq-clean").folder.parent / "vhost", tmp_path / "rabbit"))
    reader = BrokerStoreSource({"path": str(store)})
    planned = reader.reader(reader.schema())
    partitions = planned.partitions()
    store.rename(tmp_path / "elsewhere")
    with pytest.raises(UnknownStore, match="not found on executor"):
        list(planned.read(partitions[0]))


def test_rocketmq_and_rabbitmq_folders_cannot_be_mixed_in_one_read(made: Path, fixture_store: Any) -> None:
    """Both kinds have different columns."""
    with pytest.raises(UnknownStore, match="load them separately"):
        list(batches([made, fixture_store("rabbitmq-clean").folder.parent / "vhost"]))


def test_a_store_open_in_another_program_accepts_no_rows(spark: SparkSession, made: Path) -> None:
    """The error comes before any task."""
    with MessageStore.open(made, config=SMALL), pytest.raises(Exception) as caught:
        save(spark, made, "'t' topic, 'b' body")
    assert len(str(spark_errors.plain_error(caught.value)).splitlines()) == 1


def test_an_uncaught_error_of_another_kind_is_shown_as_python_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only errors of this library lose their stack."""
    shown: list[tuple[Any, str, Any]] = []
    monkeypatch.setattr(sys, "__excepthook__", lambda kind, error, stack: shown.append((kind, str(error), stack)))
    try:
        raise DiskError("open", "/a", 5, "I/O error")
    except DiskError as error:
        spark_errors.show_line(type(error), error, error.__traceback__)
    try:
        raise ValueError("other")
    except ValueError as error:
        spark_errors.show_line(type(error), error, error.__traceback__)
    assert [(kind, text, stack is None) for kind, text, stack in shown] == [
        (DiskError, "/a: open failed: I/O error (errno 5)", True), (ValueError, "other", False),
    ]  # fmt: skip


def test_a_notebook_shows_one_line_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython has its own handler of errors."""

    class Shell:
        def __init__(self) -> None:
            self.shown: list[tuple[Any, Any]] = []

        def set_custom_exc(self, kinds: tuple[type, ...], handler: Any) -> None:
            self.kinds, self.handler = kinds, handler

        def showtraceback(self, found: tuple[Any, Any, Any], **options: Any) -> None:
            self.shown.append((str(found[1]), options.get("exception_only", False)))

    shell = Shell()
    monkeypatch.setattr(spark_errors, "_notebook", lambda: shell)
    spark_errors.install_hooks()
    try:
        assert shell.kinds == (Exception,)
        shell.handler(shell, UnknownStore, UnknownStore("/a: no such folder"), None)
        assert shell.shown == [("/a: no such folder", True)]
    finally:
        spark_errors.remove_hooks()
    assert shell.kinds == () and sys.excepthook is sys.__excepthook__


def test_only_a_worker_hides_stacks(made: Path) -> None:
    """A program that calls the source itself keeps its environment."""
    assert not is_worker()
    with pytest.raises(StoreError):
        list(batches(made, colour="red"))
    assert HIDE not in os.environ


def run(script: str, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a user's program outside of the source tree, with nothing set for Spark."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHONPATH", "SPARK"))}
    settings = {"SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": JAVA_OPTIONS}
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{script}", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=inherited | settings | environment)


SETTINGS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "600m"}
SESSION = f'sparkstore.session("local[1]", settings={SETTINGS})'
CHATTER = (
    "NOTE: ",
    "WARNING: Using incubator",
    "Using Spark's default log4j",
    "Setting default log level",
    "To adjust logging",
)


def answer(reported: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what a program printed on stderr apart from Spark's greeting."""
    return [
        line for line in reported.stderr.splitlines() if not line.startswith(CHATTER) and " WARN NativeCodeLoader" not in line
    ]


def test_a_first_script_runs_and_its_error_is_one_line(made: Path) -> None:
    """An environment that is not activated is enough: `python3` on the path may be any other."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    reported = run(
        f"import sparkstore\nspark = {SESSION}\n"
        'print("rows", spark.read.format("brokerstore").load(sys.argv[1]).count())\n'
        'spark.read.format("brokerstore").load("/absent")\n',
        made, PATH=f"/usr/bin:/bin:{os.environ['PATH']}",
    )  # fmt: skip
    assert "rows 1500" in reported.stdout.splitlines(), reported.stderr[-2000:]
    assert answer(reported) == ["storageio.errors.UnknownStore: /absent: no such folder"]


def test_a_machine_without_java() -> None:
    """One line, where Spark prints a stack."""
    reported = run(f"import sparkstore\n{SESSION}\n", PATH="/nowhere", JAVA_HOME="")
    assert answer(reported) == [
        "storageio.errors.MissingExtra: Spark needs Java 17 or later, found none on the PATH: install it, or set JAVA_HOME"
    ]


def test_workers_of_another_python(tmp_path: Path) -> None:
    """PYSPARK_PYTHON names a Python without the library: one line says what to set."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    venv.create(tmp_path / "bare", with_pip=False)
    bare = str(tmp_path / "bare" / "bin" / "lonely")  # in a source tree the session passes the library's place on
    others = f'$(echo "$PYTHONPATH" | tr : "\\n" | grep -vxF {ROOT} | paste -sd :)'
    Path(bare).write_text(f'#!/bin/sh\nPYTHONPATH="{others}" exec {tmp_path}/bare/bin/python "$@"\n')
    os.chmod(bare, 0o755)
    reported = run(f"import sparkstore\n{SESSION}\n", PYSPARK_PYTHON=bare)
    found = answer(reported)
    assert len(found) <= LINES_MAX and f"({bare}) does not have brokerstore installed" in found[-1]
    assert f"set PYSPARK_PYTHON={sys.executable}" in found[-1]


def test_a_python_without_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(MissingExtra, match=r"pip install 'brokerstore\[spark\]'"):
        sparkstore.session()
