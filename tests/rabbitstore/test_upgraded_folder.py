"""Two folders of a real 3.8.9 that 3.10.8 went on with: consumers acknowledged messages that 3.8.9 had never delivered.

A clean stop of 3.10.8 left the acknowledgements in the journals (`journal`), or as a single mark in the segments (`segment`).
The numbers are what the real 3.10.8 delivered after `recover`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rabbitstore import apply_recovery, verify
from rabbitstore.read.vhost_folder import VhostFolder
from tests.archives import unpack

ARCHIVE = Path(__file__).parents[1] / "data/rabbitmq38-upgraded.tar.xz"
ACKNOWLEDGED = {"c.big": 18, "c.head": 18, "c.held": 18, "c.more": 28, "c.some": 24, "c.untouched": 30}
AGAIN = {"c.big": 30, "c.head": 30, "c.held": 25, "c.more": 40, "c.some": 28, "c.untouched": 30}


def listed(path: Path) -> dict[str, int]:
    """Return the number of messages of each queue that are not acknowledged."""
    return dict(Counter(message.queue for message in VhostFolder(str(path)).messages()))


@pytest.mark.parametrize(
    ("name", "kinds", "expected"),
    [
        ("journal", {"ack_without_delivery"}, ACKNOWLEDGED),  # 3.10.8 starts none of the five queues before `recover`
        ("segment", {"bad_recovery_terms", "bad_ref_count"}, AGAIN),  # it delivers most of the acknowledged ones again
    ],
)
def test_recover_makes_a_folder_upgraded_from_3_8_usable(
    tmp_path: Path, name: str, kinds: set[str], expected: dict[str, int]
) -> None:
    """Acknowledgements in a journal are kept; where a single mark may be a delivery too, no message is dropped."""
    unpack(ARCHIVE, tmp_path)
    path = tmp_path / name
    assert {problem.kind for problem in verify(str(path)).problems} == kinds
    assert listed(path) == expected
    plan = apply_recovery(str(path))
    assert (plan.messages_lost, listed(path)) == (0, expected)
    assert verify(str(path)).problems == []
