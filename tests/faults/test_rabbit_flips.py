"""Flipped bits in RabbitMQ's files, of both index versions."""

from __future__ import annotations

import shutil

import pytest

from storebytes.builds import build_name
from tests.amounts import amount
from tests.faults.golden import fast_folder, unpacked
from tests.faults.rabbit_flips import Vhost

LARGE_QUEUES = ("18PFRXGVXXG0ZIS281F2ZCGPH", "BGRIRRI733GZZGP0F653VU17V")  # 2,956 of 3,068 messages
FLIPS = amount(250, 700) if build_name() == "compiled" else 40


@pytest.mark.parametrize("name", ["rabbitmq-clean", "rabbitmq-v2"])
def test_a_flipped_bit_in_a_virtual_host_is_reported_or_in_an_unchecked_field(name: str) -> None:
    """Each flip is reported, changes nothing, or is in a field that no rule covers."""
    with fast_folder() as above:
        folder = unpacked(name, above)
        for queue in LARGE_QUEUES:
            shutil.rmtree(folder / "queues" / queue)
        for path in [folder / "recovery.dets", *folder.glob("*/clean.dot"), *folder.glob("*/*.ets")]:
            path.rename(above / f"{path.parent.name}-{path.name}")  # the clean-stop files describe all queues
        found = Vhost(folder).sweep(FLIPS, 1)
    assert any("named" in kind for kind in found)
    print(f"{name}: {sum(found.values())} bits flipped: {dict(found)}")
