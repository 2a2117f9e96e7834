"""Our errors, taken out of Spark's.

Spark hands an error of a Python task over as text with two traces around it.  The line that says what happened is ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import storageio
from storageio import StoreError

from . import errors

_LINE = re.compile(r"^\s*(?:[\w.]*?(?:\w+Exception: )?)?(?:storageio\.errors|sparkstore\.errors)\.(\w+): (.+)$", re.MULTILINE)
_KINDS = {name: kind for room in (storageio, errors) for name, kind in vars(room).items() if isinstance(kind, type)}


class JobError(StoreError):
    """What a task or the planning of one said; `kind` is the class of our error that was raised there."""

    def __init__(self, kind: type[StoreError], text: str) -> None:
        """`text` names the file and the offset where there is one."""
        super().__init__(text)
        self.kind = kind


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise `JobError` in the place of a Spark error that one of ours caused."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        found = find_store_error(str(error))
        if found is None:
            raise
        raise found from None


def is_wrong_use(error: BaseException) -> bool:
    """Whether Spark refused what was asked for before it did anything: a target that is there, a schema that is none."""
    from pyspark.errors import AnalysisException, ParseException

    return isinstance(error, (AnalysisException, ParseException))


def find_store_error(text: str) -> JobError | None:
    """The last of our errors that a text names: the first ones may have led to it."""
    for name, said in reversed(_LINE.findall(text)):
        kind = _KINDS.get(name)
        if kind is not None and issubclass(kind, StoreError):
            return JobError(kind, said.strip())
    return None
