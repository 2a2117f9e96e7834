"""The queue machine in every version gives the states and snapshots of the server's own module, program by program.

BROKERSTORE_ROUNDS sets the number of programs in hundreds, BROKERSTORE_SEED the first seed.  With BROKERSTORE_KEEP=1 the first
programs and results replace the archive from which the normal run compares.
"""

from __future__ import annotations

import io
import os
import tarfile

import pytest

from tests.rabbitstore.conftest import DATA

from .queue_machine import HISTORIES, differences, program, run_server
from .server import home_of
from .test_years import reason

pytestmark = pytest.mark.slow
ROUNDS, SEED = int(os.environ.get("BROKERSTORE_ROUNDS") or 1), int(os.environ.get("BROKERSTORE_SEED") or 1)
KEPT = 6  # programs of each history in the archive
FURTHER = {  # programs of histories that differed once: their seeds
    (8,): (8, 31, 44),  # cancelled and single active consumers lose their connections
    (7, 8): (8, 31, 44),
    (0, 2, 3, 5, 7, 8): (8, 31, 44, 7_700_899),  # an active consumer ends, and the first that waits has a low priority
    (0, 1, 2): (10_101_122,),  # a consumer that waits is cancelled
    (0, 1, 2, 3): (7_700_727,),  # one message that is not held is settled, by a consumer with more credit than its limit
    (0, 2, 3, 4, 5): (7_701_197,),
}
ARCHIVE = DATA / "rabbitmq-queue-machine.tar.xz"


def _parameter(suite, versions):
    why = reason(suite)
    return pytest.param(suite, versions, marks=pytest.mark.skipif(bool(why), reason=why or "-"), id=name_of(versions))


def name_of(versions):
    """Return the versions of a history as a text."""
    return "-".join(map(str, versions))


@pytest.mark.parametrize(
    ("suite", "versions"), [_parameter(suite, versions) for suite, found in HISTORIES.items() for versions in found]
)
def test_states_and_snapshots_are_those_of_the_server(suite, versions):
    """Random commands of clients, upgrades among them, in every release that can be installed here."""
    programs = [program(SEED * 100_000 + number, versions) for number in range(100 * ROUNDS)]
    found, count, snapshots = differences(*run_server(home_of(suite), programs))
    assert found == []
    print(f"{suite} {versions}: {count} programs, {snapshots} snapshots", flush=True)


@pytest.mark.skipif(os.environ.get("BROKERSTORE_KEEP") != "1", reason="set BROKERSTORE_KEEP=1 to write the archive")
def test_archive_of_the_normal_run_is_written():
    """Programs and results of each history."""
    with tarfile.open(ARCHIVE, "w:xz") as archive:
        for suite, histories in HISTORIES.items():
            for versions in histories:
                numbers = [*range(KEPT), *FURTHER.get(tuple(versions), ())]
                requests, answered = run_server(home_of(suite), [program(number, versions) for number in numbers])
                for ending, data in (("programs", requests), ("results", answered)):
                    entry = tarfile.TarInfo(f"{name_of(versions)}.{ending}")
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
