"""Random programs of dozens of queues in one life of a server, of each release and through upgrades, judged by its restart.

BROKERSTORE_LIVES, which `make rabbit-night` sets, is how many lives each server has: a kill comes at another moment each time.
"""

from __future__ import annotations

import os

import pytest

from .chains import CHAINS, name_of, run_chain
from .test_years import reason
from .years import SUITES

LIVES = int(os.environ.get("BROKERSTORE_LIVES") or 0)  # of a server, killed and stopped in turn
SEED = int(os.environ.get("BROKERSTORE_SEED") or 1)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # connections to a killed server
]


def _parameter(*chain):
    why = next(filter(None, (reason(suite) for suite in chain if suite in SUITES)), "")
    return pytest.param(chain, marks=pytest.mark.skipif(bool(why), reason=why or "-"), id=name_of(chain))


@pytest.mark.skipif(not LIVES, reason="set BROKERSTORE_LIVES to judge lives of servers")
@pytest.mark.parametrize("life", range(LIVES))
@pytest.mark.parametrize("chain", [_parameter(suite) for suite in SUITES] + [_parameter(*chain) for chain in CHAINS])
def test_a_restarted_server_delivers_what_is_listed(chain, life, tmp_path):
    """Message by message, with properties, routes and flags, after stops and kills; `recover` changes nothing of that."""
    outcome = run_chain(chain, life, SEED + life, tmp_path)
    print(outcome, flush=True)
    assert outcome.wrong == []
