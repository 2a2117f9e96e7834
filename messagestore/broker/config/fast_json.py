"""Read and write the JSON of RocketMQ's config files (`docs/formats/config.md#the-json`).

It comes from the library fastjson: integer keys of a map are unquoted, and the layout is its own. The reader accepts what that
library accepts: keys with and without quotes (a bare integer key becomes an `int`), single quotes, extra commas. The writer
produces the library's layout byte for byte. Maps keep the order in which they were read.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from storageio import StoreCorrupt

Json = Any  # None, bool, int, float, str, list of these, or dict from str or int to these

SIZE_MAX = 64 << 20
DEPTH_MAX = 64
FOUND_MAX = 24  # characters of the source that an error shows

_SPACE = re.compile(r"[ \t\r\n\f\b]*", re.ASCII)
_COMMAS = re.compile(r"[ \t\r\n\f\b,]*", re.ASCII)
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_NUMBER = re.compile(r"(-?[0-9]{1,64})(\.[0-9]{1,64})?([eE][+-]?[0-9]{1,4})?L?(?![\w.])", re.ASCII)
_INTEGER = re.compile(r"-?[0-9]{1,19}(?=[ \t\r\n]*:)", re.ASCII)
_NAME = re.compile(r"[A-Za-z_$][\w$]{0,254}")
_WORDS = {"true": True, "false": False, "null": None}
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = re.compile(r"[0-9a-fA-F]{4}")


def loads(data: bytes, *, file: str) -> Json:
    """Return the value in `data`. Raises `StoreCorrupt` with `file` and the byte offset of the first syntax error."""
    if len(data) > SIZE_MAX:
        raise StoreCorrupt(
            "too long for a config file", file=file, offset=0, expected=f"at most {SIZE_MAX} bytes", found=len(data)
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        found = data[error.start : error.end].hex()
        raise StoreCorrupt("no text", file=file, offset=error.start, expected="UTF-8", found=found) from error
    return _JsonReader(text, file).read()


class _JsonReader:
    """A parser of one text, from start to end."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._at = 0

    def read(self) -> Json:
        """Return the one value of the text; fail if anything follows it."""
        value = self._value(DEPTH_MAX)
        self._skip(_SPACE)
        if self._at < len(self._text):
            self._fail("the end of the text")
        return value

    def _fail(self, expected: str) -> NoReturn:
        found = repr(self._text[self._at : self._at + FOUND_MAX]) if self._at < len(self._text) else "the end"
        offset = len(self._text[: self._at].encode())
        raise StoreCorrupt("not the JSON of a config file", file=self._file, offset=offset, expected=expected, found=found)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        """Skip what `pattern` matches and return the next character; empty at the end."""
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._text[self._at : self._at + 1]

    def _value(self, depth: int) -> Json:
        first = self._skip(_SPACE)
        if depth == 0:
            self._fail(f"at most {DEPTH_MAX} levels")
        if first == "{":
            return self._map(depth)
        if first == "[":
            return self._list(depth)
        if first and first in _PLAIN:
            return self._string(first)
        return self._number() if first.isdigit() or first == "-" else self._word()

    def _map(self, depth: int) -> dict[str | int, Json]:
        """Parse a map; the last occurrence of a key counts."""
        self._at += 1
        found: dict[str | int, Json] = {}
        while self._skip(_COMMAS) != "}":
            key = self._key()
            if self._skip(_SPACE) != ":":
                self._fail("a colon")
            self._at += 1
            found[key] = self._value(depth - 1)
            self._need_joint("}")
        self._at += 1
        return found

    def _list(self, depth: int) -> list[Json]:
        self._at += 1
        found: list[Json] = []
        while self._skip(_COMMAS) != "]":
            found.append(self._value(depth - 1))
            self._need_joint("]")
        self._at += 1
        return found

    def _need_joint(self, end: str) -> None:
        """Fail unless at least one comma separates two members."""
        joint = self._skip(_SPACE)
        if joint not in (",", end) or not joint:
            self._fail(f"a comma or {end}")

    def _key(self) -> str | int:
        first = self._text[self._at : self._at + 1]
        if first and first in _PLAIN:
            return self._string(first)
        match = _INTEGER.match(self._text, self._at)
        if match:
            self._at = match.end()
            return int(match[0])
        match = _NAME.match(self._text, self._at)
        if not match:
            self._fail("a key")
        self._at = match.end()
        return match[0]

    def _number(self) -> int | float:
        match = _NUMBER.match(self._text, self._at)
        if not match:
            self._fail("a number")
        self._at = match.end()
        whole, fraction, exponent = match.groups()
        return int(whole) if fraction is None and exponent is None else float(f"{whole}{fraction or ''}{exponent or ''}")

    def _word(self) -> bool | None:
        match = _NAME.match(self._text, self._at)
        if not match or match[0] not in _WORDS:
            self._fail("a value")
        self._at = match.end()
        return _WORDS[match[0]]

    def _string(self, quote: str) -> str:
        self._at += 1
        parts = []
        while True:
            match = _PLAIN[quote].match(self._text, self._at)
            assert match is not None  # the pattern also matches an empty string
            parts.append(match[0])
            self._at = match.end()
            if self._at >= len(self._text):
                self._fail(f"a closing {quote}")
            self._at += 1
            if self._text[self._at - 1] == quote:
                return "".join(parts)
            parts.append(self._escape())

    def _escape(self) -> str:
        """Parse an escape after its backslash. Surrogate pairs are combined; a lone surrogate is kept."""
        letter = self._text[self._at : self._at + 1]
        if letter == "u":
            unit = self._unit()
            if 0xD800 <= unit < 0xDC00 and self._text.startswith("\\u", self._at):
                return self._pair(unit)
            return chr(unit)
        if letter not in _ESCAPES or not letter:
            self._fail("an escape")
        self._at += 1
        return _ESCAPES[letter]

    def _pair(self, high: int) -> str:
        kept = self._at
        self._at += 1
        low = self._unit()
        if 0xDC00 <= low < 0xE000:
            return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
        self._at = kept
        return chr(high)

    def _unit(self) -> int:
        match = _HEX.match(self._text, self._at + 1)
        if not match:
            self._fail("u and four hex digits")
        self._at = match.end()
        return int(match[0], 16)


_SPECIAL = re.compile('[\x00-\x1f"\\\\\x7f-\x9f\u2028\u2029\ud800-\udfff]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def dumps(value: Json, *, pretty: bool = True) -> bytes:
    """Return `value` as the broker writes it, without a final newline; map fields that are None are omitted.

    `pretty=False` returns the one-line layout of `timermetrics` and `transactionMetrics`.

    >>> dumps({"t": {0: 12, 1: 30}, "e": {}})
    b'{\\n\\t"t":{0:12,1:30\\n\\t},\\n\\t"e":{}\\n}'
    """
    parts: list[str] = []
    _write(parts, value, "\n" if pretty else "", 0)
    return "".join(parts).encode()


def _write(parts: list[str], value: Json, line: str, depth: int) -> None:
    """Append a value. `line` is a newline with the current indentation, or empty."""
    if depth > DEPTH_MAX:
        raise ValueError(f"more than {DEPTH_MAX} levels")
    if isinstance(value, dict):
        _write_map(parts, value, line, depth)
    elif isinstance(value, list):
        _write_list(parts, value, line, depth)
    elif isinstance(value, str):
        parts.append(_quoted(value))
    elif isinstance(value, bool) or value is None:
        parts.append({True: "true", False: "false", None: "null"}[value])
    elif isinstance(value, int | float):
        parts.append(repr(value).replace("inf", "1e9999"))  # JSON has no word for infinity; 1e9999 is read as such
    else:
        raise TypeError(f"{type(value).__name__} has no place in a config file")


def _write_map(parts: list[str], value: dict[str | int, Json], line: str, depth: int) -> None:
    """Append a map: every text key on a line of its own, integer keys on the current line."""
    parts.append("{")
    deeper = line and line + "\t"
    joint = ""
    for key, member in value.items():
        if member is None:
            continue
        parts.append(f"{joint}{key}:" if isinstance(key, int) else f"{joint}{deeper}{_quoted(key)}:")
        _write(parts, member, deeper, depth + 1)
        joint = ","
    parts.append(f"{line}}}" if joint else "}")


def _write_list(parts: list[str], value: list[Json], line: str, depth: int) -> None:
    """Append a list on one line."""
    parts.append("[")
    for position, member in enumerate(value):
        if position:
            parts.append(",")
        _write(parts, member, line and line + "\t", depth + 1)
    parts.append("]")


def _quoted(text: str) -> str:
    return '"' + _SPECIAL.sub(_escaped, text) + '"'


def _escaped(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04X}"
