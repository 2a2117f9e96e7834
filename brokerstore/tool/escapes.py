"""Escaping of text from files, in the one place that makes it safe to print.

Names and bodies are untrusted.  A control character could set a terminal's title, hide a line or forge one, so the tool prints
text for people through `printable`; libraries, warnings and tracebacks write to stderr through `escaped_stderr`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any


def printable(text: str) -> str:
    """Return the text with control characters, direction marks and lone surrogates escaped.

    >>> printable("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    if text.isprintable():
        return text
    return "".join(part if part.isprintable() else part.encode("unicode_escape").decode("ascii") for part in text)


def printable_lines(text: str) -> str:
    """Return text of several lines with everything but line ends and tabs escaped.

    >>> printable_lines("a\\x1b\\n\\tb\\r")
    'a\\\\x1b\\n\\tb\\\\r'
    """
    if text.isprintable():
        return text
    return "".join(part if part in "\n\t" else printable(part) for part in text)


def quote(text: str) -> str:
    """Quote a word for a shell; one with unprintable characters as bash, zsh and ksh read it: `$'...'`.

    >>> quote("a b"), quote("a\\x1bb")
    ("'a b'", "$'a\\\\x1bb'")
    """
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_in_word, text)) + "'"


def _in_word(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character.isprintable():
        return character
    data = os.fsencode(character) if character.encode("utf-8", "surrogateescape") else b""
    return "".join(f"\\x{byte:02x}" for byte in data)


class EscapedStream:
    """A text stream that escapes what is written to it; other attributes are those of the wrapped stream."""

    def __init__(self, stream: Any) -> None:
        """Wrap a stream, which the caller still owns and closes."""
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the text with control characters escaped."""
        self.stream.write(printable_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line as `write` does."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped stream."""
        return getattr(self.stream, name)


class _EscapedLine(logging.Formatter):
    """A formatter that puts a log record on one line, whatever names it holds."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        return printable(super().formatMessage(record))


@contextlib.contextmanager
def escaped_stderr() -> Iterator[None]:
    """Escape what is written to stderr, including log lines without a handler."""
    before, last = sys.stderr, logging.lastResort
    formatter = last.formatter if last is not None else None
    if last is not None:
        last.setFormatter(_EscapedLine())
    sys.stderr = EscapedStream(before)
    try:
        yield
    finally:
        sys.stderr = before
        if last is not None:
            last.setFormatter(formatter)


def plain_stderr() -> Any:
    """Return stderr as it is, for progress bars, which move the cursor themselves."""
    return sys.stderr.stream if isinstance(sys.stderr, EscapedStream) else sys.stderr


def escaped_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback as Python does, escaped: for `sys.excepthook`."""
    sys.stderr.write(printable_lines("".join(traceback.format_exception(kind, error, trace))))
