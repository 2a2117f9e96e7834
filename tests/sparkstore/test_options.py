"""Every option of the source and of the sink, with valid and invalid values.  Needs no Spark."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sparkstore.errors import BadOption
from sparkstore.options import NAMES, option_texts, parse_read_options
from sparkstore.sink.options import OWN, SIZES, parse_sink_options
from storageio import StoreError

SIZE = (["1", "64k", "2M", "1g"], ["-1", "1.5", "1kb", "k", "nan", "1e3", " 1", "9" * 19])
NUMBER = (["0", "17", str((1 << 63) - 1)], ["", "-1", "1.5", "nan", "x", " 1", str(1 << 63)])
TIME = ([*NUMBER[0], "2026-01-31T12:00:00Z", "2026-01-31T12:00:00.5+02:00"], [*NUMBER[1], "2026-01-31T12:00:00", "2026-01-31"])
FLAG = (["true", "FALSE"], ["", "yes", "1", "none"])
NAME = (["a", "a b"], ["", " "])
OFFSETS = (
    ["0", "100", '{"T": {"0": 5}}', '{"T": {"0": -1, "1": -2}}'],
    [
        "", "-1", "x", "{", "[]", '{"T": 5}', '{"T": {"x": 5}}', '{"T": {"-1": 5}}', '{"T": {" 1": 5}}', '{"T": {"0": -3}}',
        '{"T": {"0": true}}', '{"T": {"0": 1.5}}', '{"T": {"0": "5"}}', '{"": {"0": 5}}',
    ],
)  # fmt: skip
LENGTH = (["1", "1k", str((1 << 31) - 1)], ["", "0", "-1", "1.5", "x", "2g", str(1 << 31)])
READ: dict[str, tuple[list[str], list[str]]] = {
    "path": (["/a"], ["", ","]),
    "paths": (['["/a"]'], ["/a", '"/a"', "{}", "[1]"]),
    "topic": (["T", "T, U"], ["", " , "]),
    "subscribePattern": (["T.*", "a|b"], ["", " ", "(", "*"]),
    "assign": (
        ['{"T": [0]}', '{"T": [0, 1], "U": [5]}'],
        ["", "T", "{}", "[]", '{"T": 0}', '{"T": ["0"]}', '{"T": [-1]}', '{"T": [true]}', '{"": [0]}', '{"T": []}'],
    ),
    "queueId": (["0", "0,1"], ["", "-1", "x", "1.5", "1" * 10]),
    "startingOffsets": (["earliest", *OFFSETS[0]], ["latest", *OFFSETS[1]]),
    "endingOffsets": (["latest", *OFFSETS[0]], ["earliest", *OFFSETS[1]]),
    "startingGroup": NAME,
    "startingTimestamp": TIME,
    "endingTimestamp": TIME,
    "startingOffsetsByTimestamp": (['{"T": {"0": 5}}'], ["", "5", "{", '{"T": 5}', '{"T": {"0": -1}}', '{"T": {"0": "5"}}']),
    "key": NAME,
    "bodyDecoding": (["stored", "PLAIN"], ["", "gzip"]),
    "checkCrc": (["auto", *FLAG[0]], FLAG[1]),
    "badRecords": (["fail", "skip", "report"], ["", "ignore"]),
    "failOnDataLoss": FLAG,
    "splitBytes": (["0", *SIZE[0]], ["", *SIZE[1]]),
    "batchRows": (["1", "8192"], ["", "0", "-1", "x", "1.5", str((1 << 20) + 1)]),
    "fileBytes": (["0", *SIZE[0]], ["", *SIZE[1]]),
    "columns": (["topic", "topic, body"], ["", " , "]),
    "pushFilters": FLAG,
    "vhost": (["/", "a b"], ["", " "]),
    "queue": NAME,
    "trace": FLAG,
}
SINK: dict[str, tuple[list[str], list[str]]] = {
    "path": (["/a", "file:/a"], ["", "s3://a"]),
    "topic": (["T"], ["", "a/b", "..", "T" * 128, "a\0b"]),
    "queues": (["1", "8"], ["", "0", "-1", "x", str((1 << 20) + 1)]),
    "sinkId": (["a-1"], ["", "a b", "../a", "x" * 65]),
    "batchId": (["0", "7"], ["", "-1", "x", "9" * 19]),
    "newStore": FLAG,
    "trace": FLAG,
    **dict.fromkeys(SIZES, LENGTH),
}
BESIDE = {"path": {"paths": "[]"}, "paths": {}}


def test_every_option_is_in_the_table() -> None:
    """A new option of the source or the sink must be added to this table too."""
    assert set(READ) == set(NAMES)
    assert set(SINK) == {*OWN, *SIZES}


def _read(name: str, value: str) -> Any:
    return parse_read_options({**BESIDE.get(name, {"path": "/a"}), name: value})


def _sink(name: str, value: str) -> Any:
    return parse_sink_options({"path": "/a", name: value})


CASES = [(_read, name, *texts) for name, texts in READ.items()] + [(_sink, name, *texts) for name, texts in SINK.items()]


@pytest.mark.parametrize(
    ("parse", "name", "right", "wrong"), CASES, ids=lambda one: getattr(one, "__name__", one if isinstance(one, str) else "-")
)
def test_an_option_takes_its_values_and_refuses_others_by_its_name(
    parse: Any, name: str, right: list[str], wrong: list[str]
) -> None:
    """Every option rejects each kind of invalid text."""
    for text in right:
        parse(name, text)
        parse(name.upper(), text)
    for text in wrong:
        with pytest.raises(BadOption, match=rf"\b{re.escape(name)}\b"):
            parse(name, text)


@pytest.mark.parametrize("parse", [_read, _sink])
def test_an_unknown_option_is_refused_by_name(parse: Any) -> None:
    """The error lists the valid options."""
    with pytest.raises(BadOption, match=r"unknown option 'batchrow'.*the options are path"):
        parse("batchRow", "1")


@pytest.mark.parametrize("wrong", [1.5, ["T"], {"T": 1}, b"T", object(), ("T",)], ids=lambda one: type(one).__name__)
def test_a_value_that_is_neither_text_nor_number_nor_flag_is_refused(wrong: object) -> None:
    """A list of topics would become the name of one topic, and match nothing."""
    with pytest.raises(BadOption, match="option topic"):
        option_texts({"topic": wrong})


def test_python_values_become_option_texts() -> None:
    """None means that the option is not given."""
    given = option_texts({"checkCrc": True, "batchRows": 5, "topic": "T", "key": None})
    assert given == {"checkCrc": "true", "batchRows": "5", "topic": "T"}


def test_a_bad_option_is_caught_as_a_value_error() -> None:
    """It is an error of this library too."""
    assert issubclass(BadOption, ValueError)
    assert issubclass(BadOption, StoreError)
