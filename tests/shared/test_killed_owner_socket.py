"""What a killed owner leaves is no damage."""

from __future__ import annotations

import socket
from pathlib import Path

import brokerstore
from messagestore.repair.verification import verify_store


def test_the_socket_of_a_killed_owner_is_no_problem(tmp_path: Path) -> None:
    """The next owner replaces it."""
    store = tmp_path / "s"
    with brokerstore.connect(store) as shared:
        shared.put("t", b"one")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(store / "brokerstore" / "owner.socket"))
    (store / "abort").touch()
    report = verify_store(str(store))
    assert report.is_ok
    with brokerstore.connect(store) as shared:
        shared.put("t", b"two")
    assert verify_store(str(store)).is_ok
