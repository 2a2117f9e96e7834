"""Servers of four years: their healthy folders are intact, read as the server delivers them, and come through `recover`.

RabbitMQ 4.0.5 runs everywhere; the others, which take a minute each, with BROKERSTORE_JUDGE=all.
With BROKERSTORE_KEEP=1 folders of 3.8.9 and 3.10.8 replace those of the normal run.
"""

from __future__ import annotations

import os
import shutil
import tarfile

import pytest

from tests.brokerstore.tool import run
from tests.rabbitstore.conftest import DATA

from .judge import Judge
from .server import home_of, why_not
from .years import SUITES, delivered, listed, make_folders, served, write_delivered

pytestmark = pytest.mark.slow
IN_CI = ("trixie",)


def reason(suite):
    """Return why a release cannot be judged here, or an empty text."""
    if suite not in IN_CI and os.environ.get("BROKERSTORE_JUDGE") != "all":
        return "set BROKERSTORE_JUDGE=all to judge every release"
    return why_not(home_of(suite))


def _parameter(suite):
    return pytest.param(suite, marks=pytest.mark.skipif(bool(reason(suite)), reason=reason(suite) or "-"), id=SUITES[suite])


@pytest.fixture(scope="module", params=[_parameter(suite) for suite in SUITES])
def year(request, tmp_path_factory):
    """Return a release's judge and its folders."""
    judge = Judge(f"years-{request.param}", 40, node_name="years", home=home_of(request.param))
    try:
        yield judge, make_folders(judge, request.param, tmp_path_factory.mktemp(request.param))
    finally:
        judge.server.close()


KEPT = {"bullseye": "rabbitmq38", "bookworm": "rabbitmq310"}
ENDS = {"SIGTERM": "clean", "SIGKILL": "killed"}


@pytest.mark.skipif(os.environ.get("BROKERSTORE_KEEP") != "1", reason="set BROKERSTORE_KEEP=1 to write the archives")
@pytest.mark.parametrize("how", ENDS)
def test_archive_of_the_normal_run_is_written(year, how, tmp_path):
    """The folder, the feature flags and what the server delivers after a start on a copy."""
    judge, folders = year
    suite = next(suite for suite in SUITES if home_of(suite) == judge.server.home)
    if suite not in KEPT:
        pytest.skip("other archives have this release")
    folder = folders[how]
    shutil.copytree(folder.path, tmp_path / "node")
    shutil.copy(f"{folder.path}-feature_flags", tmp_path / "feature_flags")
    judge.put_back(folder.path)
    assert not judge.start()
    try:
        counts = {name: len(rows) for name, rows in listed(folder.path, folder.queues).items()}
        write_delivered(tmp_path / "delivered.json", SUITES[suite], delivered(judge, folder.queues, counts))
    finally:
        judge.kill()
    with tarfile.open(DATA / f"{KEPT[suite]}-{ENDS[how]}.tar.xz", "w:xz") as archive:
        for name in ("node", "feature_flags", "delivered.json"):
            archive.add(tmp_path / name, name)


@pytest.mark.parametrize("how", ENDS)
def test_a_healthy_folder_of_every_release_year_is_served_after_recover(year, how):
    """`verify` is 0, `dump` lists what the server delivers, and after `recover --apply` it delivers the same."""
    judge, folders = year
    folder = folders[how]
    checked = run("verify", folder.path)
    assert checked.code == 0, checked.out
    before = listed(folder.path, folder.queues)
    assert served(judge, folder.path, folder.queues, before) == []
    recovered = run("recover", "--apply", "--json", folder.path)
    assert recovered.json["plan"]["records_dropped"] == 0
    assert run("verify", folder.path).code == 0
    assert listed(folder.path, folder.queues) == before
    assert served(judge, folder.path, folder.queues, before) == []


@pytest.mark.parametrize("how", ENDS)
def test_queues_without_their_name_files_are_served_as_listed(year, how, tmp_path):
    """The server looks for a folder by the hash of the declared name; some names are beyond ASCII, some of a priority."""
    judge, folders = year
    folder, node = folders[how], tmp_path / "node"
    shutil.copytree(folder.path, node)
    shutil.copy(f"{folder.path}-feature_flags", f"{node}-feature_flags")
    for path in node.glob("msg_stores/vhosts/*/queues/*/.queue_name"):
        path.unlink()
    found = listed(node, folder.queues)
    assert found == listed(folder.path, folder.queues)
    assert served(judge, node, folder.queues, found) == []


def test_a_folder_at_another_path_is_served_as_noted(year):
    """3.10.8 has the path in each `config`, and serves no queue of these elsewhere, but all with a symlink at the path."""
    judge, folders = year
    folder = folders["SIGTERM"]
    noted = [one for one in run("verify", "--json", folder.path).json["notes"] if one["kind"] == "other_path"]
    assert len(noted) == (judge.server.home == home_of("bookworm"))
    other = Judge(f"{judge.server.outside.name}-elsewhere", 50, is_patient=False, node_name="years", home=judge.server.home)
    original = judge.server.outside
    original.rename(aside := original.with_name(f"{original.name}-aside"))
    try:
        expected = listed(folder.path, folder.queues)
        refused = {text.partition(":")[0] for text in served(other, folder.path, folder.queues, expected)}
        assert refused == ({name for name in folder.queues if name[:2] in ("q.", "s.")} if noted else set())
        shutil.rmtree(original, ignore_errors=True)  # the server makes empty folders there
        (original / "mnesia").mkdir(parents=True)
        (original / "mnesia" / judge.node.name).symlink_to(f"{other.server.inside}/mnesia/{judge.node.name}")
        assert served(other, folder.path, folder.queues, expected) == []
    finally:
        shutil.rmtree(original, ignore_errors=True)
        aside.rename(original)
        other.server.close()


def test_indexes_cut_to_their_heads_beside_damaged_terms_are_served_after_recover(year, tmp_path):
    """The server alone delivers nothing of them; after `recover --apply` it delivers every message that the stop left."""
    judge, folders = year
    folder, node = folders["SIGTERM"], tmp_path / "node"
    shutil.copytree(folder.path, node)
    shutil.copy(f"{folder.path}-feature_flags", f"{node}-feature_flags")
    for path in node.glob("msg_stores/vhosts/*/queues/*/*.qi"):
        path.write_bytes(path.read_bytes()[:64])
    for path in node.glob("msg_stores/vhosts/*/recovery.dets"):
        path.write_bytes(path.read_bytes()[:56])
    run("recover", "--apply", node)
    found = listed(node, folder.queues)
    kept = {name: {row.body for row in rows} for name, rows in found.items()}
    assert all({row.body for row in rows} <= kept[name] for name, rows in listed(folder.path, folder.queues).items())
    assert run("verify", node).code == 0
    assert served(judge, node, folder.queues, found, exact=False) == []
