"""Start a Spark session that finds the format "brokerstore" and reports errors in one line.

    import sparkstore
    spark = sparkstore.session()                        # local[*], or the session of spark-submit, pyspark or a notebook
    spark = sparkstore.session("local[2]", settings={"spark.driver.memory": "2g"})

Spark looks for formats with its workers' Python, `python3` unless PYSPARK_PYTHON says otherwise.  `session` sets that variable
to the running Python before it starts Java.  In a session that somebody else started it only checks that the format is found.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from storageio import MissingExtra, needs_extra

from .jar import JARS, jar_path
from .source.reading import FORMAT, NOT_FOUND, missing_in_python
from .source.worker import TRACE
from .spark_errors import install_hooks, remove_hooks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON = "PYSPARK_PYTHON"
GATEWAY = "PYSPARK_GATEWAY_PORT"  # set if spark-submit or a notebook's kernel already started Java
JAVA_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
SETTINGS = {
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
}
# They print the stack of an error that the driver reports anyway.
LOGGERS = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.DataSourceManager",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.execution.datasources.v2.AppendDataExec",
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.util.Utils",
)


def session(
    master: str | None = None,
    *,
    remote: str | None = None,
    app_name: str = "brokerstore",
    settings: Mapping[str, str] | None = None,
    trace: bool = False,
) -> SparkSession:
    """Return the running session, or start one with the recommended settings; `settings` come on top of these.

    `remote` is the URL of a Spark Connect server.  Errors of this library end a program with one line; `trace` shows Python's
    and Java's stacks.  Raises `MissingExtra` if pyspark, Java, or brokerstore in the workers' Python is missing.
    """
    if not trace:
        install_hooks()
    with needs_extra("spark"):
        from pyspark.sql import SparkSession
    is_ours = not remote and "SPARK_REMOTE" not in os.environ and not _is_running()
    if is_ours:
        _prepare_java(trace)
    builder: Any = SparkSession.builder.appName(app_name)
    builder = builder.remote(remote) if remote else builder
    builder = builder.master(master) if master and not remote else builder
    jar = jar_path()
    own = {**SETTINGS, **({JARS: jar} if jar else {})} if is_ours else {}
    for name, value in {**own, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    _set_trace(spark, trace)
    if _may_lack_library(remote):
        check_format(spark)
    return spark


def _is_running() -> bool:
    """Return whether a session or its Java process exists."""
    from pyspark import SparkContext

    return GATEWAY in os.environ or SparkContext._active_spark_context is not None


def _prepare_java(trace: bool) -> None:
    """Set the environment that Java and its Python workers inherit."""
    home = os.environ.get("JAVA_HOME")
    if not (shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")):
        where = f"none in JAVA_HOME={home}" if home else "none on the PATH"
        raise MissingExtra(f"Spark needs Java 17 or later, found {where}: install it, or set JAVA_HOME")
    os.environ.setdefault(PYTHON, sys.executable)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in (*paths, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in (root, *paths) if path)  # not installed: a source tree
    if trace:
        os.environ[TRACE] = "1"
    else:
        os.environ.pop(TRACE, None)


def _may_lack_library(remote: str | None) -> bool:
    return bool(remote) or os.environ.get(PYTHON) != sys.executable


def check_format(spark: SparkSession) -> None:
    """Raise `MissingExtra` if the session's workers do not find the format."""
    try:
        spark.read.format(FORMAT).load()
    except Exception as error:  # without a path it is `BadOption`, inside an error of py4j's or Spark Connect's
        if NOT_FOUND in str(error):
            raise missing_in_python() from None


def _set_trace(spark: SparkSession, trace: bool) -> None:
    """Show or hide the stacks of errors in this process and in the driver's log."""
    if trace:
        remove_hooks()
    if hasattr(spark, "_jvm"):  # a Connect client has no Java of its own
        java: Any = spark._jvm
        level = java.org.apache.logging.log4j.Level.WARN if trace else java.org.apache.logging.log4j.Level.OFF
        for name in LOGGERS:
            java.org.apache.logging.log4j.core.config.Configurator.setLevel(name, level)
