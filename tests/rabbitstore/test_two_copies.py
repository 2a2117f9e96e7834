"""An index entry in both journal and segment, after a kill in the middle of a flush."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from storageio.testing import ForgettingDisk, Image

JOURNAL_PUBLISH_BYTES, ID_AT, EXPIRY_AT = 40, 8, 24


class Killed(NamedTuple):
    """A folder after a kill: two messages in both journal and segment, and the `paths` of the files."""

    run: Any
    image: Image
    journal: str
    segment: str
    bodies: list[bytes]

    def with_changed(self, path: str, at: int, change: Callable[[int], int]) -> ForgettingDisk:
        """Return the disk with one byte changed."""
        data = bytearray(self.image.files[path])
        data[at] = change(data[at])
        return ForgettingDisk.of(self.image._replace(files=self.image.files | {path: bytes(data)}))


@pytest.fixture
def killed(world: Any) -> Callable[[int], Killed]:
    """Return a function that makes the folder with bodies of a given size."""

    def make(size_bytes: int) -> Killed:
        lab = world.module("lab.rabbitmq_lab")
        run = lab.RabbitRun(tries=False)
        for operation in (("declare", "a", "default"), *[("publish", ("a",), size_bytes, True)] * 2, ("sync",)):
            run.do(operation)
        (journal,) = [path for path in run.disk.files() if path.endswith("journal.jif")]
        before = run.disk.files()[journal]
        run.do(("flush_journals",))
        image = run.disk.after_kill()
        (segment,) = [path for path in image.files if path.endswith("/0.idx")]
        bodies = run.ledger.queues["a"].published
        return Killed(run, image._replace(files=image.files | {journal: before}), journal, segment, bodies)

    return make


@pytest.mark.parametrize("size_bytes", [3000, 20], ids=["stored", "embedded"])
@pytest.mark.parametrize("bit", [0, 7, 64, 127])
def test_a_flipped_bit_in_the_journals_id_loses_no_message(
    killed: Callable[[int], Killed], world: Any, size_bytes: int, bit: int
) -> None:
    """The journal used to count although no file had its id, which lost the message without a report."""
    found = killed(size_bytes)
    at = ID_AT + bit // 8
    rabbit, check = world.module("rabbitstore"), world.module("lab.rabbitmq_check")
    lab = world.module("lab.rabbitmq_lab")
    disk = found.with_changed(found.journal, at, lambda byte: byte ^ 1 << bit % 8)
    assert [problem.kind for problem in rabbit.verify(lab.ROOT, disk).problems] == ["entries_differ"]
    read = rabbit.RabbitStore.open(lab.ROOT, "r", disk=disk).folder()
    assert [message.body for message in read.messages()] == found.bodies
    store = found.run.open(disk)
    assert store.lost == [] and [problem.kind for problem in store.problems] == ["entries_differ"]
    assert check.take_all(store, "a") == found.bodies
    store.abandon()
    for image in (disk.after_kill(), disk.least()):
        again = ForgettingDisk.of(image)
        check.check_folder(lab.ROOT, again)
        assert check.take_all(found.run.open(again), "a") == found.bodies


@pytest.mark.parametrize("size_bytes", [3000, 20], ids=["stored", "embedded"])
@pytest.mark.parametrize("where", ["journal", "segment"])
def test_recover_keeps_the_copy_with_an_existing_message(
    killed: Callable[[int], Killed], world: Any, size_bytes: int, where: str
) -> None:
    """Whichever copy is damaged, afterwards both files agree, and every message is there."""
    found = killed(size_bytes)
    rabbit, check = world.module("rabbitstore"), world.module("lab.rabbitmq_check")
    lab = world.module("lab.rabbitmq_lab")
    path, at = (found.journal, ID_AT) if where == "journal" else (found.segment, 2)
    disk = found.with_changed(path, at, lambda byte: byte ^ 1)
    read = rabbit.RabbitStore.open(lab.ROOT, "r", disk=disk).folder()
    assert [message.body for message in read.messages()] == found.bodies
    plan = rabbit.plan_recovery(lab.ROOT, disk)
    assert (plan.messages_lost, plan.messages_kept) == (0, 2)
    assert [(step.kind, step.reason) for step in plan.steps] == [("join_journal", "entries_differ")]
    rabbit.apply_recovery(lab.ROOT, disk)
    check.check_folder(lab.ROOT, disk)
    assert [message.body for message in rabbit.RabbitStore.open(lab.ROOT, "r", disk=disk).messages()] == found.bodies
    kept = [name for name in disk.files() if "/brokerstore/cut/" in name]
    assert sorted(name.rpartition("__")[2] for name in kept) == ["0.idx", "journal.jif"]


def test_a_publish_with_a_damaged_sequence_number_replaces_no_other_message(
    killed: Callable[[int], Killed], world: Any
) -> None:
    """With one flipped bit the journal's second publish names 0 and used to replace message 0."""
    found = killed(3000)
    rabbit, check = world.module("rabbitstore"), world.module("lab.rabbitmq_check")
    lab = world.module("lab.rabbitmq_lab")
    journal = bytearray(found.image.files[found.journal])
    second = JOURNAL_PUBLISH_BYTES + 8
    assert journal[second : second + 8] == (1).to_bytes(8, "big")
    journal[:] = journal[second:]
    journal[7] = 0
    image = found.image._replace(files=found.image.files | {found.journal: bytes(journal)})
    disk = ForgettingDisk.of(image)
    assert [problem.kind for problem in rabbit.verify(lab.ROOT, disk).problems] == ["entries_differ"]
    store = found.run.open(disk)
    assert check.take_all(store, "a") == found.bodies
    store.abandon()


def test_an_expiry_that_differs_is_reported(killed: Callable[[int], Killed], world: Any) -> None:
    """If both copies have a message, the journal's counts, as after a torn segment."""
    found = killed(3000)
    lab = world.module("lab.rabbitmq_lab")
    disk = found.with_changed(found.journal, EXPIRY_AT, lambda byte: byte ^ 1)
    (problem,) = world.module("rabbitstore").verify(lab.ROOT, disk).problems
    assert (problem.kind, problem.offset) == ("entries_differ", 0)
    assert problem.file.endswith("journal.jif")
