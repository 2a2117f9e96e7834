"""The demo's main work on a small scale."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import pytest

from brokerstore import demo
from commitlog import CommitLog, open_log


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the log files of 2 MiB: a verification reads a file to its end."""
    monkeypatch.setattr(demo, "CommitLog", functools.partial(CommitLog, file_size_bytes=2 << 20))


def test_demo_prints_every_step_and_removes_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """It prints the figures of every step and the build, and removes its folder."""
    monkeypatch.setattr(sys, "argv", ["demo", "--messages", "3000", "--folder", str(tmp_path)])
    assert demo.main() == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.count("messages/s") == captured.out.count("MB/s") == 6
    assert "Kernels: " in captured.out
    assert "3,000 messages" in captured.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("there", "changed"), [(b"order-000000299", b"order-000000298"), (b"000000299a body", b"000000299A body")]
)
def test_demo_detects_a_changed_key_or_body(tmp_path: Path, there: bytes, changed: bytes) -> None:
    """The comparison detects a changed key or body."""
    end = demo.put_all(str(tmp_path), 300)
    path = tmp_path / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        position = path.read_bytes()[:end].rindex(there)
        file.seek(position)
        file.write(changed)
    log = open_log(str(tmp_path / "commitlog"))
    with pytest.raises(SystemExit, match="message 299 differs from the one that was put"):
        demo.read_back(log.messages(checks=0), lambda _done: None)
    log.close()
    with pytest.raises(SystemExit, match="verification found"):
        demo.check_all(str(tmp_path), 300, end)


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The demo ends with an exit code and no traceback."""
    from storageio import DiskFull

    def refuse(_folder: str) -> Any:
        raise DiskFull("allocate", "file", 28, "No space left on device")

    monkeypatch.setattr(demo, "open_for_writing", refuse)
    monkeypatch.setattr(sys, "argv", ["demo", "--folder", str(tmp_path)])
    assert demo.main() == 5
    assert "No space left" in capsys.readouterr().err
