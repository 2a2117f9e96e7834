"""The lifecycle of background threads, and the switch of invariant checks."""

from __future__ import annotations

import threading

import pytest

from storageio import invariants
from storageio.background import BackgroundThread, Wakeup


def test_a_wakeup_ends_one_wait() -> None:
    """A wakeup that is set twice ends only one wait."""
    wakeup = Wakeup()
    wakeup.set()
    wakeup.set()
    assert wakeup.is_set
    assert (wakeup.wait(0), wakeup.wait(0), wakeup.is_set) == (True, False, False)


def test_wake_ends_a_sleep_and_stop_ends_the_thread() -> None:
    """The step after `wake` sees that it was woken; no step follows `stop`."""
    steps: list[bool] = []
    done = threading.Event()

    def step() -> None:
        steps.append(thread.was_woken)
        done.set()

    thread = BackgroundThread("test", step, first_pause_s=None)
    thread.start()
    thread.wake()
    assert done.wait(30)
    thread.stop()
    thread.stop()
    assert steps == [True]


def test_a_step_that_returns_no_pause_runs_again_at_once() -> None:
    """A pause of 0 repeats the step immediately, until the step returns a pause."""
    pauses: list[float | None] = [0.0, 0.0, None]
    done = threading.Event()

    def step() -> float | None:
        pause = pauses.pop(0)
        if not pauses:
            done.set()
        return pause

    thread = BackgroundThread("test", step)
    thread.start()
    assert done.wait(30)
    thread.stop()


def test_stop_ends_a_pause_within_a_step() -> None:
    """`wake` does not end it, and after `stop` no pause waits."""
    stopped: list[bool] = []
    entered = threading.Event()

    def step() -> None:
        entered.set()
        stopped.extend(thread.pause(3600) for _ in range(2))

    thread = BackgroundThread("test", step)
    thread.start()
    assert entered.wait(30)
    thread.wake()
    assert thread.is_woken
    thread.stop()
    assert stopped == [True, True]


def test_a_thread_that_stops_itself_does_not_wait_for_itself() -> None:
    """It ends after the current step."""
    ended = threading.Event()

    def step() -> float:
        thread.stop()
        ended.set()
        return 0.0

    thread = BackgroundThread("test", step)
    thread.start()
    assert ended.wait(30)
    thread.stop()
    assert thread.is_stopping


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_exception_that_ended_a_thread_is_kept() -> None:
    """`threading.excepthook` receives it too."""

    def step() -> float:
        raise ValueError("broken")

    thread = BackgroundThread("test", step)
    thread.start()
    assert thread._thread is not None
    thread._thread.join()
    assert isinstance(thread.failure, ValueError)
    thread.stop()


def test_a_thread_that_was_not_started_can_be_stopped() -> None:
    """A store without threads stops like any other."""
    thread = BackgroundThread("test", lambda: 0.0)
    thread.stop()
    assert not thread.is_started


def test_invariants_are_checked_where_the_switch_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the switch is off, the check is not called."""
    calls: list[int] = []
    monkeypatch.setattr(invariants, "IS_CHECKED", False)
    invariants.check_invariants(calls.append, 1)
    monkeypatch.setattr(invariants, "IS_CHECKED", True)
    invariants.check_invariants(calls.append, 2)
    assert calls == [2]
