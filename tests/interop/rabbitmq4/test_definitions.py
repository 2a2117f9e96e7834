"""The declarations of a dead node of each release: what its server exported, and what a new one has after an import.

RabbitMQ 4.0.5 runs everywhere; the others with BROKERSTORE_JUDGE=all.  `BROKERSTORE_LIVES` sets the number of random programs.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.rabbitstore.exports import differences

from .declarations import Declarer, declare_everything, definitions, run_and_kill
from .test_years import reason

pytestmark = pytest.mark.slow
LIVES = int(os.environ.get("BROKERSTORE_LIVES") or 2)
STORES = (("bullseye", False), ("bookworm", False), ("trixie", False), ("trixie", True), ("sid", True))


def _parameter(suite, khepri):
    name = f"{suite}-{'khepri' if khepri else 'mnesia'}"
    return pytest.param((suite, khepri), marks=pytest.mark.skipif(bool(reason(suite)), reason=reason(suite) or "-"), id=name)


@pytest.fixture(params=[_parameter(*one) for one in STORES])
def node(request):
    """Return a server that was started for the first time."""
    suite, khepri = request.param
    made = Declarer(suite, f"declared-{suite}-{khepri}", 60, khepri=khepri)
    try:
        made.start()
        yield made
    finally:
        made.server.close()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_new_server_has_everything_after_an_import(node, how, tmp_path):
    """The export of the old server, the definitions of its folder and the export of the new one are equal."""
    declare_everything(node)
    export = node.export()
    node.server.end(how)
    found = definitions(node.save(tmp_path / "node"))
    assert differences(export, found, suite=node.suite) == []
    node.forget()
    node.start()
    assert node.load(found) == ""
    lost = differences(export, node.export(), suite=node.suite)
    if node.suite == "bullseye":  # 3.8 reads no description and tags of a virtual host, from its own export either
        lost = [text for text in lost if not text.startswith("vhosts: ")]
    assert lost == []


def test_definitions_of_a_server_killed_meanwhile_are_those_after_its_next_start(node, tmp_path):
    """Whatever was declared or deleted when the kill came."""
    for life in range(LIVES):
        run_and_kill(node, life, 1 + life % 4)
        found = definitions(node.save(tmp_path / f"node{life}"))
        try:
            node.start()
        except AssertionError as error:
            if "BOOT FAILED" not in str(error):
                raise
            node.server.abandon()
            pytest.skip(f"RabbitMQ itself does not start on the folder of life {life} after the kill: {str(error)[-300:]}")
        assert differences(node.export(), found, suite=node.suite) == [], life
