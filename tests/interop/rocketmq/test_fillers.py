"""Fillers of `recover --skip-bad` before a real broker: its consumers get every message that is left, and nothing else."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from tests.faults.damaged_stores import template
from tests.faults.file_damage import copied
from tests.faults.test_unknown_formats import records

from .folders import JAVA_NAMES
from .judged import RealStoreJudge
from .jvm import prepare_or_skip, why_not
from .live import deliveries
from .real_broker import RealBroker, until

COUNT = 60
LOST = (3, 20, 21, COUNT - 2)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]


def message(number: int, queues: int = 2) -> dict[str, object]:
    """Return a message with its number as the body, of different sizes."""
    more = {"keys": [f"k{number}" * (number % 7 + 1)]}
    return {"topic": "T", "queue_id": number % queues, "body": base64.b64encode(b"%d" % number).decode()} | more


def test_real_consumers_get_no_filler(tmp_path: Path) -> None:
    """A push consumer and a pulling one get the messages that are left, and those sent later."""
    prepare_or_skip()
    folder = tmp_path / "store"
    settings = dict(zip(JAVA_NAMES, (1 << 18, 20_000, 500, 2_000), strict=True))
    with RealBroker(folder, tmp_path / "first", **settings) as broker:
        broker.invoke("topic", topic="T", queues=2)
        broker.invoke("send", messages=[message(number) for number in range(COUNT)])
        broker.stop()
    bodies = {b"%d" % number for number in LOST}
    for path, at in records(folder):
        data = bytearray(path.read_bytes())
        size = int.from_bytes(data[at + 84 : at + 88], "big")
        if bytes(data[at + 88 : at + 88 + size]) in bodies:
            data[at + 4 : at + 36] = b"\xee" * 32
            path.write_bytes(data)
    assert Recovery(str(folder), Choice.SKIP).apply().messages_lost == len(LOST)
    assert not verify_store(str(folder)).problems
    expected = [number for number in range(COUNT + 5) if number not in LOST]
    with RealBroker(folder, tmp_path / "second", **settings) as broker:
        broker.invoke("send", messages=[message(number) for number in range(COUNT, COUNT + 5)])
        read = [base64.b64decode(one[3]) for one in broker.invoke("read", topic="T", brief=True)]
        assert sorted(map(int, read)) == expected
        file = tmp_path / "pushed"
        broker.invoke("start_consumer", name="p", group="push", topic="T", file=str(file))
        until(lambda: len(deliveries(file)) >= len(expected), "every message came")
        broker.invoke("stop_consumer", name="p")
        assert sorted(one.body for one in deliveries(file)) == expected


@pytest.mark.parametrize("has_units", [True, False], ids=["sound-queues", "zeroed-queues"])
def test_real_batch_queues_are_read_past_the_fillers(tmp_path: Path, *, has_units: bool) -> None:
    """The first log file is an older copy. The real store delivers each batch once, also those behind the lost ones."""
    prepare_or_skip()
    made = template("batchcq", tmp_path / "template")
    folder = copied(made.folder, tmp_path / "damaged" / "store")
    assert made.older is not None
    first = min((folder / "commitlog").iterdir())
    first.write_bytes((made.older / "commitlog" / first.name).read_bytes())
    for path in (folder / "batchconsumequeue").rglob("0*") if not has_units else ():
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))
    assert Recovery(str(folder), Choice.SKIP).apply().messages_lost > 100
    assert not verify_store(str(folder)).problems
    judge = RealStoreJudge(tmp_path / "stderr")
    try:
        assert judge(folder, made.settings) == ""
    finally:
        judge.end()
