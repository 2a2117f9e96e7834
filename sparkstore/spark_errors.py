"""Extract the errors of this library from Spark's.

Spark passes an error of a Python task on as text inside two stack traces; only one line of it says what happened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import storageio
from storageio import StoreError

from . import errors

_LINE = re.compile(r"^\s*(?:[\w.]*?(?:\w+Exception: )?)?(?:storageio\.errors|sparkstore\.errors)\.(\w+): (.+)$", re.MULTILINE)
_KINDS = {name: kind for module in (storageio, errors) for name, kind in vars(module).items() if isinstance(kind, type)}


class JobError(StoreError):
    """An error raised while a task was planned or run; `kind` is the class of the original error."""

    def __init__(self, kind: type[StoreError], text: str) -> None:
        """Keep the original class and message; `text` names file and offset if there are any."""
        super().__init__(text)
        self.kind = kind


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise `JobError` instead of a Spark error that a `StoreError` caused."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        found = find_store_error(str(error))
        if found is None:
            raise
        raise found from None


def is_wrong_use(error: BaseException) -> bool:
    """Return whether Spark rejected the request before any work: the target exists, a schema does not parse."""
    from pyspark.errors import AnalysisException, ParseException

    return isinstance(error, (AnalysisException, ParseException))


def find_store_error(text: str) -> JobError | None:
    """Return the last `StoreError` that a text names (earlier ones may have caused it), or None."""
    for name, message in reversed(_LINE.findall(text)):
        kind = _KINDS.get(name)
        if kind is not None and issubclass(kind, StoreError):
            return JobError(kind, message.strip())
    return None
