"""Offsets of consumers after a crash if their file is unreadable."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from storageio import StoreCorrupt
from tests.messagestore.writers import number_of, open_store, put_all


def test_unreadable_offset_file_does_not_prevent_opening(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The file is logged and left unchanged, and offsets in other files are clamped; reading it raises the error."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 9)
    config = tmp_path / "config"
    torn = b'{"offsetTable":{'
    caplog.set_level(logging.WARNING, logger="brokerstore.messagestore")
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (config / name).write_bytes(torn)
    (config / "delayOffset.json").write_bytes(b'{"offsetTable":{1:77}}')
    (tmp_path / "abort").write_bytes(b"1")
    with open_store(tmp_path) as store:
        assert sorted(number_of(stored) for queue in range(3) for stored in store.read("t", queue)) == list(range(9))
        assert [line.partition(":")[0] for line in store.engine.clamped_offsets] == ["delayOffset.json"]
        with pytest.raises(StoreCorrupt, match="consumerOffset"):
            store.committed_offsets("t", "g")
    assert "consumerOffset.json: not looked at" in caplog.text
    assert {(config / name).read_bytes() for name in ("consumerOffset.json", "consumerOffset.json.bak")} == {torn}
    assert store.engine.is_clean_stop
