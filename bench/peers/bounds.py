"""Bounds of rows: loops that do only what every Python implementation must do, measured beside the row.

A bound is a name, completing "a loop that only <name>", and a function that returns its rate.
"""

from __future__ import annotations

import random
import statistics
import time
import zlib
from collections.abc import Callable
from typing import NamedTuple

from commitlog import CHECK_ALL
from commitlog._scan_cy import scan

from .codecs import Codec
from .own_store import OwnStore, body_of

READY = 1000  # values that fit into a processor's cache


class Bound(NamedTuple):
    """A bound; `rate()` has the unit of the row's rates."""

    name: str
    rate: Callable[[], float]


def rate_of(call: Callable[[], int]) -> float:
    """Return the rate of one call, which returns how much it did."""
    began = time.perf_counter()
    done = call()
    return done / (time.perf_counter() - began)


def decoded_in_memory(codec: Callable[[], Codec], body: int) -> Bound:
    """Return the bound of "decoded": decode values of a general format in the processor's cache, without log or checksum."""

    def rate() -> float:
        pack, read = codec()
        data = body_of(body)
        values = [pack(number, b"key-0-%d" % number, data) for number in range(READY)]

        def read_all() -> int:
            for value in values:
                read(value)
            return READY

        return statistics.median(rate_of(read_all) for _ in range(5))

    return Bound("decodes the same out of msgpack (pairs: two slices) in the processor's cache, and reads it", rate)


def missed_in_a_dictionary(calls: int, messages: int) -> Bound:
    """Return the bound of a query that misses: make the keys and look them up in an empty dictionary."""

    def rate() -> float:
        find, chosen = dict[str, list[bytes]]().get, random.Random(3)
        numbers = [chosen.randrange(messages) for _ in range(calls)]

        def invoke() -> int:
            for number in numbers:
                for body in find("none-" + str(number), ()):
                    len(body)
            return calls

        return rate_of(invoke)

    return Bound("makes the same keys and asks an empty dictionary for them", rate)


def checked_records(ours: OwnStore, start: int) -> Bound:
    """Return the bound of columns: check both checksums of each record from a physical offset on, and copy nothing."""
    log = ours.store.engine.log

    def walk() -> int:
        log.update_written()
        found = 0
        for file in log.queue.files:
            begin = max(0, start - file.start_offset)
            if begin < file.written:
                found += scan(log.queue.view(file), begin, file.written, file.start_offset, CHECK_ALL)[2]
        return found

    return Bound("checks the records in log order and copies nothing", lambda: rate_of(walk))


def record_touched(store: OwnStore, single: OwnStore, found: list[float], calls: int) -> Bound:
    """Return the bound of growth: the cost with a single file, plus what reading a record costs more in a long log."""

    def rate() -> float:
        longer_s = 1 / _crc_rate(store, calls) - 1 / _crc_rate(single, calls)
        return 1 / (1 / found[-1] + max(0.0, longer_s))

    return Bound("does what it does of a single file and reads each record from where it lies", rate)


def _crc_rate(store: OwnStore, calls: int) -> float:
    """Return the rate of `zlib.crc32` of records at random positions."""
    log = store.store.engine.log
    log.update_written()
    views = [log.queue.view(file) for file in log.queue.files if file.written]
    chosen = random.Random(6)
    size = min(1290, log.file_size_bytes // 2)
    positions = [(chosen.randrange(len(views)), chosen.randrange(log.file_size_bytes - size)) for _ in range(calls)]

    def touch() -> int:
        for file, at in positions:
            zlib.crc32(views[file][at : at + size])
        return calls

    touch()
    return rate_of(touch)
