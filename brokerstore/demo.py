"""`make demo`: at least a million messages put into a log, and all of them read back and checked.

    python -m brokerstore.demo [--messages N] [--folder FOLDER]

A log of 1 GiB files is made in a temporary folder; messages go in one by one, in lists and as columns; it is flushed, closed,
opened again, verified record by record and read back, each message compared with what was put; the folder is removed.  Every
step prints messages/s and, of the log's bytes, MB/s.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from commitlog import CommitLog, LogPaths, Message, PutStatus, StoredMessage, open_log, verify_log
from storageio import REAL_DISK, StoreError
from storebytes.builds import build_name

from .tool.output import emit, print_line, progress, size_text

MESSAGES_DEFAULT = 1_200_000
BODY_SIZE = 200
DIGITS = 9
LIST_SIZE = 1000
COLUMN_ROWS = 50_000
TOPIC, TAGS, KEY = "orders", "paid", "order-"
FILLING = (b"a body of about two hundred bytes, as orders have them; " * 8)[: BODY_SIZE - DIGITS]
Advance = Callable[[int], None]


class DemoStep(NamedTuple):
    """What a step did, and how long it took."""

    messages: int
    size_bytes: int
    seconds: float


def body_of(number: int) -> bytes:
    """Return the body of a message, which holds its number."""
    return b"%09d" % number + FILLING


def message_of(number: int) -> Message:
    """Return the message with this number."""
    return Message(TOPIC, body_of(number), tags=TAGS, keys=[f"{KEY}{number:09d}"], queue_id=0)


def open_for_writing(folder: str) -> CommitLog:
    """Create a log of 1 GiB files."""
    log = CommitLog(LogPaths(REAL_DISK, [os.path.join(folder, "commitlog")]), writable=True)
    log.attach(0)
    return log


def put_one_by_one(log: CommitLog, numbers: range, advance: Advance) -> None:
    """Put each message as a `Message` object with one call."""
    append = log.appender.append
    for number in numbers:
        accept(append(message_of(number)).status)
        if number % LIST_SIZE == 0:
            advance(LIST_SIZE)


def put_lists(log: CommitLog, numbers: range, advance: Advance) -> None:
    """Put lists of a thousand `Message` objects."""
    for first in range(numbers.start, numbers.stop, LIST_SIZE):
        part = [message_of(number) for number in range(first, min(first + LIST_SIZE, numbers.stop))]
        accept(log.appender.append_many(part).status)
        advance(len(part))


def put_columns(log: CommitLog, numbers: range, advance: Advance) -> None:
    """Put bodies, keys and tags as arrays, without an object for each message."""
    for first in range(numbers.start, numbers.stop, COLUMN_ROWS):
        part = np.arange(first, min(first + COLUMN_ROWS, numbers.stop))
        bodies, keys = numbered(part, b"", FILLING), numbered(part, KEY.encode(), b"")
        tags = np.tile(np.frombuffer(TAGS.encode(), np.uint8), (len(part), 1))
        columns = [(offsets_of(column), column.reshape(-1)) for column in (bodies, keys, tags)]
        accept(log.appender.append_columns(TOPIC, 0, *columns[0], keys=columns[1], tags=columns[2]).status)
        advance(len(part))


def numbered(numbers: np.ndarray, prefix: bytes, suffix: bytes) -> np.ndarray:
    """Return rows of equal length: text, the number in nine digits, text."""
    digits: np.ndarray = numbers[:, None] // 10 ** np.arange(DIGITS - 1, -1, -1) % 10 + ord("0")
    parts = [np.broadcast_to(np.frombuffer(text, np.uint8), (len(numbers), len(text))) for text in (prefix, suffix)]
    rows: np.ndarray = np.hstack([parts[0], digits.astype(np.uint8), parts[1]])
    return rows


def offsets_of(rows: np.ndarray) -> np.ndarray:
    """Return where each row of equal length begins, and the end."""
    offsets: np.ndarray = np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1]
    return offsets


def accept(status: PutStatus) -> None:
    """Stop at the first message that was refused."""
    if status is not PutStatus.PUT_OK:
        raise SystemExit(f"a message was refused: {status.name}")


def read_back(messages: Iterator[StoredMessage], advance: Advance) -> int:
    """Compare each message with what was put; return how many there are."""
    number = -1
    for number, message in enumerate(messages):
        is_same = message.body == body_of(number) and message.keys == [f"{KEY}{number:09d}"] and message.tags == TAGS
        if not is_same or message.topic != TOPIC or message.queue_offset != number:
            raise SystemExit(f"message {number} differs from the one that was put: {message!r}")
        if number % LIST_SIZE == 0:
            advance(LIST_SIZE)
    return number + 1


def report(title: str, step: DemoStep) -> None:
    """Print the figures of a step."""
    rate, speed = step.messages / step.seconds, step.size_bytes / step.seconds / 1e6
    emit(f"{title:<34} {step.messages:>9,} messages {step.seconds:>7.2f} s {rate:>12,.0f} messages/s {speed:>8,.0f} MB/s")
    sys.stdout.flush()


def timed(title: str, count: int, size_of: Callable[[], int], work: Callable[[Advance], object]) -> None:
    """Do the work with a progress bar, then print its figures."""
    with progress(title, count) as advance:
        size, began = size_of(), time.perf_counter()
        work(advance)
        seconds = time.perf_counter() - began
    report(title, DemoStep(count, abs(size_of() - size), seconds))


def put_all(folder: str, total: int) -> int:
    """Put a tenth one by one, three tenths in lists and the rest as columns; flush; return the log's end."""
    log = open_for_writing(folder)
    singles, lists = total // 10, total * 4 // 10

    def size() -> int:
        return max(log.written_offset, 0)

    timed("Put one by one", singles, size, lambda advance: put_one_by_one(log, range(singles), advance))
    timed("Put in lists of 1,000", lists - singles, size, lambda advance: put_lists(log, range(singles, lists), advance))
    timed("Put as columns of 50,000 rows", total - lists, size, lambda advance: put_columns(log, range(lists, total), advance))
    began, end = time.perf_counter(), size()
    log.flush()
    report("Flush to the disk", DemoStep(total, end, time.perf_counter() - began))
    log.close()
    return end


def check_all(folder: str, total: int, end: int) -> None:
    """Open the log again; check every checksum, then compare every message with what was put."""
    path = os.path.join(folder, "commitlog")
    began = time.perf_counter()
    found = verify_log([path])
    report("Reopen, verify all checksums", DemoStep(found.records, end, time.perf_counter() - began))
    if not found.is_ok or found.records != total or found.end_offset != end:
        raise SystemExit(f"verification found {found.problems or found.counts()}")
    log = open_log(path)
    title = "Read back, compare each message"
    with progress(title, total) as advance:
        began = time.perf_counter()
        count = read_back(log.messages(), advance)
        seconds = time.perf_counter() - began
    log.close()
    if count != total:
        raise SystemExit(f"{count} messages were read, {total} were put")
    report(title, DemoStep(count, end, seconds))


def run(total: int, parent: str | None) -> None:
    """Run the whole demo."""
    build = build_name()
    how = {"compiled": "compiled (C)", "plain": "plain Python; with a C compiler they are many times faster"}.get(build, build)
    with tempfile.TemporaryDirectory(prefix="brokerstore-demo-", dir=parent) as folder:
        emit(f"brokerstore demo: {total:,} messages with bodies of {BODY_SIZE} bytes, a key and a tag each")
        emit(f"Kernels: {how}. Python {sys.version.split()[0]}. Log of 1 GiB files in {folder}")
        sys.stdout.flush()
        end = put_all(folder, total)
        check_all(folder, total, end)
    emit(
        f"Done: {total:,} messages, {size_text(end)} of log: put, flushed, reopened, verified, read back and compared. "
        "The folder was removed."
    )


def main() -> int:
    """Parse the command line and run the demo."""
    parser = argparse.ArgumentParser(prog="python -m brokerstore.demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=MESSAGES_DEFAULT, help="how many (default %(default)s)")
    parser.add_argument("--folder", help="where to make the temporary folder (1 GiB is needed for each 3 million messages)")
    options = parser.parse_args()
    try:
        run(max(options.messages, 10), options.folder)
    except (StoreError, OSError) as error:
        print_line(f"demo: {error}")
        return 5
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
