"""A thread reports new messages to an event loop, once for each time that the loop is ready for them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from commitlog import Message
from messagestore.shared.news import News, Watch
from storageio import StoreBusy
from tests.helpers import until
from tests.shared.processes import open_shared


def test_news_come_once_for_each_arm(tmp_path: Path) -> None:
    """Without `arm` puts cause no call; those that were made meanwhile count for the next one."""
    calls: list[float] = []
    with open_shared(tmp_path / "s") as store:
        watch = Watch(store, lambda: calls.append(time.monotonic()))
        store.put(Message("T", b"0"))
        time.sleep(0.1)
        assert calls == []
        watch.arm()
        until(lambda: len(calls) == 1)
        store.put(Message("T", b"1"))
        time.sleep(0.1)
        assert len(calls) == 1
        watch.arm()
        until(lambda: len(calls) == 2)
        watch.arm()
        time.sleep(0.1)
        assert len(calls) == 2
        store.put(Message("T", b"2"))
        until(lambda: len(calls) == 3)
        watch.close()


def test_an_owner_that_does_not_answer_is_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop then calls the store, which raises the error; the thread goes on."""
    calls: list[int] = []

    def silent(_news: News, _seen: int, _timeout_s: float) -> int:
        raise StoreBusy("the owner does not answer")

    with open_shared(tmp_path / "s") as store:
        watch = Watch(store, lambda: calls.append(1))
        with monkeypatch.context() as patched:
            patched.setattr(News, "wait", silent)
            watch.arm()
            until(lambda: calls == [1])
        store.put(Message("T", b"0"))
        watch.arm()
        until(lambda: calls == [1, 1])
        watch.close()
