"""Extract the errors of this library from Spark's.

Spark passes an error of a Python task on as text inside two stack traces; only one line of it says what happened.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import storageio
from storageio import StoreError

from . import errors

_LINE = re.compile(r"(?:^|[\s:])(?:storageio|sparkstore)\.errors\.(\w+): (.+)$", re.MULTILINE)
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
    try:
        yield
    except Exception as error:  # Spark's, py4j's own from a task of the JVM source, or Spark Connect's
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


def plain_error(error: BaseException) -> StoreError | None:
    """Return the `StoreError` behind an error, without stack and cause; None for an error of any other kind."""
    found = error if isinstance(error, StoreError) else find_store_error(str(error)) if _is_of_spark(error) else None
    if found is None:
        return None
    kind = found.kind if isinstance(found, JobError) else type(found)
    plain = kind.__new__(kind)
    plain.args = (str(found),)
    return plain


def _is_of_spark(error: BaseException) -> bool:
    return any(kind.__module__.startswith(("pyspark.errors", "py4j.")) for kind in type(error).__mro__)


def show_line(kind: type[BaseException], error: BaseException, stack: TracebackType | None) -> None:
    """Show an uncaught error of this library in one line, and any other as Python does."""
    plain = plain_error(error)
    if plain is None:
        sys.__excepthook__(kind, error, stack)
    else:
        sys.__excepthook__(type(plain), plain, None)


def install_hooks() -> None:
    """Let this process show errors of this library in one line, in a notebook too."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = show_line
    shell = _notebook()
    if shell is not None:
        shell.set_custom_exc((Exception,), _show_in_notebook)


def remove_hooks() -> None:
    """Take back what `install_hooks` did."""
    if sys.excepthook is show_line:
        sys.excepthook = sys.__excepthook__
    shell = _notebook()
    if shell is not None:
        shell.set_custom_exc((), None)


def _notebook() -> Any:
    """Return IPython's shell, or None outside of one."""
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


def _show_in_notebook(shell: Any, kind: type[BaseException], error: BaseException, stack: Any, tb_offset: Any = None) -> None:
    """Show an error below a notebook's cell."""
    plain = plain_error(error)
    if plain is None:
        shell.showtraceback((kind, error, stack), tb_offset=tb_offset)
    else:
        shell.showtraceback((type(plain), plain, None), exception_only=True)
