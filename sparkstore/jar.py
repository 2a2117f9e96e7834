"""The jar of the JVM source, and the sessions that have it (docs/spark.md#the-jvm-source)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from .object_disk import is_remote
from .options import by_our_names, paths_of
from .schema import MESSAGE_COLUMNS, PROBLEM_COLUMN, STORE_COLUMN

JARS = "spark.jars"
JVM_FORMAT, PYTHON_FORMAT = "brokerstore-jvm", "brokerstore-python"  # names of one source each, where the jar is loaded
_JAR = Path(__file__).resolve().parent / "jvm" / "brokerstore-spark.jar"
# Options whose rows the JVM source lets Python select.
_PYTHON_OPTIONS = ("key", "subscribepattern", "assign", "startinggroup", "startingoffsetsbytimestamp")
_BOUNDS = ("startingoffsets", "endingoffsets")


def jar_path() -> str | None:
    """Return the path of the jar for the setting `spark.jars`, or None if this installation has none."""
    return str(_JAR) if _JAR.exists() else None


def is_for_jvm(columns: Iterable[str], options: Mapping[str, str]) -> bool:
    """Return whether the JVM decodes healthy records of a read itself; other reads are faster without it."""
    given = by_our_names(options)
    is_known = set(columns) <= {*MESSAGE_COLUMNS, STORE_COLUMN, PROBLEM_COLUMN}
    has_offsets = any(given.get(name, "").lstrip().startswith("{") for name in _BOUNDS)
    return (
        is_known and not has_offsets and given.keys().isdisjoint(_PYTHON_OPTIONS) and not any(map(is_remote, paths_of(given)))
    )
