"""`recover` for unfinished compactions, version 2, queues without a name, and plans in JSON."""

import shutil
from pathlib import Path

import pytest

from rabbitstore import RabbitSettings, RabbitStore, VhostFolder
from rabbitstore.format.layout import CLEAN_FILES
from rabbitstore.repair.check import verify
from rabbitstore.repair.recover import apply_recovery, plan_recovery
from tests.brokerstore.tool import run

from .conftest import WhenItWasWritten
from .test_damage import ALL, DEEP, MIXED, STORE, cut, damaged_summary, patch, readable, torn_journal, unfinished_compaction

QUIET = RabbitSettings(background=False, index_version=1)


def image(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def version_2(fixtures, tmp_path):
    """A copy of the server's folder of index version 2."""
    return Path(shutil.copytree(fixtures["v2"].vhost, tmp_path / "vhost-2"))


def kill_server(folder):
    """Delete the clean-stop files, as a running server does."""
    for name in CLEAN_FILES:
        (folder / name).unlink(missing_ok=True)


@pytest.mark.parametrize("is_killed", [False, True])
def test_recover_keeps_the_messages_that_only_an_interrupted_compaction_has(folder, clean, is_killed):
    """The step after the one that restored their records used to acknowledge them as lost."""
    before = readable(folder)
    unfinished_compaction(folder, clean.manifest)
    if is_killed:
        kill_server(folder)
    assert len(readable(folder)) < ALL
    plan = plan_recovery(str(folder))
    assert (plan.messages_kept, plan.messages_lost) == (ALL, 0)
    assert {step.kind for step in plan.steps} == {"salvage", "rewrite_records"} | ({"delete"} if not is_killed else set())
    apply_recovery(str(folder))
    assert verify(str(folder)).problems == []
    assert readable(folder) == before
    with RabbitStore.open(str(folder), "r+", settings=QUIET, disk=WhenItWasWritten()) as store:
        assert store.lost == [] and sum(len(store.queue(name)) for name in store.queue_names()) == 3037


def test_recover_restores_a_damaged_message_from_an_interrupted_compaction(folder, clean):
    """The copy in the `.rdt` is whole, so neither entry nor message is dropped."""
    before = readable(folder)
    message = next(one for one in VhostFolder(str(folder)).messages() if one.file.startswith(STORE))
    path, at = folder / message.file, message.offset
    data = path.read_bytes()
    whole = data[at : at + 9 + int.from_bytes(data[at : at + 8], "big")]
    path.with_suffix(".rdt").write_bytes(whole)
    patch(path, at + 24, b"\xee" * 40)
    kill_server(folder)
    assert len(readable(folder)) < len(before)
    seen = verify(str(folder)).to_json()
    kinds = sorted(problem["kind"] for problem in seen["problems"])
    assert (seen["ok"], kinds, seen["messages"]) == (False, ["bad_term", "unfinished_compaction"], ALL)
    plan = plan_recovery(str(folder))
    assert plan.messages_lost == 0 and {step.kind for step in plan.steps} == {"salvage", "rewrite_records"}
    apply_recovery(str(folder))
    assert verify(str(folder)).problems == [] and readable(folder) == before
    with RabbitStore.open(str(folder), "r+", settings=QUIET, disk=WhenItWasWritten()) as store:
        assert store.lost == [] and store.parts.persistent.read(message.msg_id) == whole[24:-1]


def test_recover_drops_a_message_without_an_intact_copy_in_an_interrupted_compaction(folder, clean):
    """Only whole messages are restored; the entry of a torn one is acknowledged."""
    unfinished_compaction(folder, clean.manifest)
    first = (folder / STORE / "4.rdt").read_bytes()
    size = 9 + int.from_bytes(first[:8], "big")
    patch(folder / STORE / "4.rdt", 24, bytes(64))
    assert size > 200
    plan = apply_recovery(str(folder))
    assert verify(str(folder)).problems == []
    assert len(readable(folder)) == ALL - plan.messages_lost


def test_an_empty_file_of_an_interrupted_compaction_is_deleted(folder):
    """A kill came after the file was created and before its first byte."""
    (folder / STORE / "4.rdt").touch()
    before = readable(folder)
    apply_recovery(str(folder))
    assert verify(str(folder)).problems == [] and readable(folder) == before
    assert not (folder / STORE / "4.rdt").exists()


def test_messages_of_a_version_2_queue_that_are_in_no_file_are_cleared(version_2):
    """With a file of the shared store missing, its entries become zeros, as in an acknowledgement; others stay."""
    before = readable(version_2)
    (version_2 / STORE / "0.rdq").unlink()
    left = readable(version_2)
    assert 0 < len(left) < len(before)
    plan = plan_recovery(str(version_2))
    assert plan.messages_lost == len(before) - len(left) > 0
    assert "drop_entries" in {step.kind for step in plan.steps}
    apply_recovery(str(version_2))
    assert verify(str(version_2)).problems == []
    assert readable(version_2) == left


def test_a_version_2_message_that_its_own_store_does_not_have_is_named(version_2):
    """A cut `N.qs` loses that message alone."""
    whole = len(readable(version_2))
    cut(version_2 / DEEP / "1.qs", -3)
    found = verify(str(version_2))
    assert [problem.kind for problem in found.problems if problem.kind == "message_lost"] == ["message_lost"]
    assert len(readable(version_2)) == whole - 1
    apply_recovery(str(version_2))
    assert verify(str(version_2)).problems == [] and len(readable(version_2)) == whole - 1


def test_a_wrong_length_before_a_version_2_message_is_corrected(version_2):
    """The entry and the checksum prove the message, so that nothing is lost."""
    before = readable(version_2)
    patch(version_2 / DEEP / "1.qs", 64, (9).to_bytes(4, "big"))
    assert [problem.kind for problem in verify(str(version_2)).problems] == ["bad_message_head"]
    assert readable(version_2) == before
    apply_recovery(str(version_2))
    assert verify(str(version_2)).problems == [] and readable(version_2) == before


def test_entries_of_lost_messages_that_were_never_delivered_are_delivered_and_acknowledged(tmp_path):
    """An acknowledgement requires a delivered mark, which old servers wrote late: both are written."""
    folder = tmp_path / "vhost"
    store = RabbitStore.open(str(folder), settings=QUIET)
    store.declare_queue("q")
    for number in range(3):
        store.publish("q", b"%d" % number * 9000)
    store.sync()
    store.abandon()
    for path in (folder / STORE).glob("*.rdq"):
        path.unlink()
    [journal] = folder.glob("queues/*/journal.jif")
    ours = journal.read_bytes()  # publish and delivered mark, three times
    published = b"".join(ours[at : at + 40] for at in range(0, len(ours), 48))
    assert [published[at : at + 8] for at in (0, 40, 80)] == [number.to_bytes(8, "big") for number in range(3)]
    journal.write_bytes(published)
    plan = plan_recovery(str(folder))
    assert plan.messages_lost == 3
    apply_recovery(str(folder))
    assert verify(str(folder)).problems == [] and readable(folder) == []
    marks = [(kind << 62 | number).to_bytes(8, "big") for number in range(3) for kind in (2, 3)]
    assert journal.read_bytes() == published + b"".join(marks)


def test_without_keep_backup_nothing_is_kept(folder):
    """Without `keep_backup` no copies are kept."""
    cut(folder / STORE / "6.rdq", -100)
    apply_recovery(str(folder), keep_backup=False)
    assert verify(str(folder)).problems == []
    assert not (folder / "brokerstore" / "cut").exists()


def test_a_second_recovery_changes_nothing(folder, clean):
    """A second operator repairs the folder after the first one."""
    unfinished_compaction(folder, clean.manifest)
    for damage in (torn_journal, damaged_summary):
        damage(folder, clean.manifest)
    (folder / STORE / "0.rdq").unlink()
    (folder / MIXED / ".queue_name").unlink()
    assert apply_recovery(str(folder)).messages_lost > 0
    before = image(folder)
    assert apply_recovery(str(folder)).steps == []
    assert verify(str(folder)).problems == [] and image(folder) == before


def test_a_queue_with_a_lost_name_that_is_in_no_message_stays_readable(tmp_path):
    """With a routing key other than the queue's name, nothing is guessed and no message is dropped."""
    folder = tmp_path / "vhost"
    with RabbitStore.open(str(folder), settings=QUIET) as store:
        for name in ("a", "b"):
            store.declare_queue(name)
            store.publish(name, b"x", routing_keys=["other"], exchange="ex")
    names = list((folder / "queues").glob("*/.queue_name"))
    names[0].unlink()
    plan = plan_recovery(str(folder))
    assert not plan.steps and [problem.finding.kind for problem in plan.unrepaired] == ["bad_queue_name"]
    apply_recovery(str(folder))
    assert [problem.kind for problem in verify(str(folder)).problems] == ["bad_queue_name"]
    assert len(readable(folder)) == 2


def test_a_plan_in_json_lists_cuts_backups_and_actions(folder, clean):
    """Scripts read this JSON."""
    torn_journal(folder, clean.manifest)
    reported = run("recover", folder, "--json").json
    journal = f"{MIXED}/journal.jif"
    assert reported["applied"] is False and reported["plan"]["messages_kept"] == reported["plan"]["records_kept"] == ALL
    assert set(reported["plan"]["valid_end"]) == {journal}
    step = {"kind": "cut_journal", "file": journal, "reason": "torn_journal"}
    assert step in reported["plan"]["actions"]
    (shown,) = (one for one in reported["plan"]["steps"] if one["kind"] == "cut_journal")
    assert shown == step | {"cost": {"bytes_lost": (folder / journal).stat().st_size - reported["plan"]["valid_end"][journal]}}


@pytest.mark.parametrize("version", [1, 2])
def test_a_lost_name_is_written_again_as_the_server_wrote_it(request, version):
    """The file is equal byte for byte, with the line of the index version."""
    where = request.getfixturevalue("folder" if version == 1 else "version_2")
    names = {path: path.read_bytes() for path in where.rglob(".queue_name")}
    assert {data.endswith(b"INDEX: v2\n") for data in names.values()} == {version == 2}
    for path in names:
        path.unlink()
    apply_recovery(str(where))
    found = {path: path.read_bytes() for path in names if path.exists()}
    assert found
    assert found == {path: names[path] for path in found}
