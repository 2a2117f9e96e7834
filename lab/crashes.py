"""The part that the labs of both engines share: they collect every crash of a step and check them after it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Generic, TypeVar

from storageio import StoreError
from storageio.testing import ForgettingDisk, Image

from .report import Report
from .rocketmq_check import Broken

Promise = TypeVar("Promise")


class Crashes(Generic[Promise]):
    """A program on a `ForgettingDisk`; a subclass defines what is promised at a moment, and checks an image against it."""

    disk: ForgettingDisk
    kind_of: Callable[[str], str]  # of a file's path

    def __init__(self, seed: int, chances: int, deep: int, limit: int, report: Report | None, tries: bool) -> None:
        """Set how many crashes to try.

        `chances` random images are added to the systematic ones at each moment; `deep` is the interval of crashes inside
        recovery.  If all combinations are at most `limit`, all are tried.  Without `tries`, no crash is tried.
        """
        self.seed = seed
        self.random = Random(seed)
        self.chances, self.deep, self.limit = chances, deep, limit
        self.report = report or Report()
        self.tries = tries
        self.done: list[tuple[Any, ...]] = []
        self.number = 0
        self.operation = "open"
        self._caught: list[tuple[str, str, Image, Promise]] = []

    def promised(self) -> tuple[Promise, int]:
        """Return what a crash at this moment must respect, and a hash of it, which makes equal content a different image."""
        raise NotImplementedError

    def judge_image(self, image: Image, promise: Promise) -> None:
        """Recover from one crash and check; now and then recover again, or crash inside the recovery."""
        raise NotImplementedError

    def settle(self) -> None:
        """Update the ledger before images are checked."""

    def catch(self, operation: str, path: str) -> None:
        """Collect the crash images of this moment; they are checked when the operation is over."""
        if not self.tries:
            return
        kinds = {self.kind_of(unsettled) for unsettled in self.disk.unsettled_paths()}
        promise, key = self.promised()
        for image in self.disk.images(self.random, self.chances, limit=self.limit):
            if self.report.is_new(hash((image.key, key))):
                self.report.count(self.operation, kinds)
                self._caught.append((operation, path, image, promise))

    def judge(self) -> None:
        """Check the collected images."""
        self.catch("after", "")
        self.settle()
        caught, self._caught = self._caught, []
        for operation, path, image, promise in caught:
            try:
                self.judge_image(image, promise)
            except (StoreError, AssertionError, ValueError, LookupError) as error:
                moment = f"before {operation} of {path}" if path else "afterwards"
                raise Broken(
                    f"seed {self.seed}, {self.operation}, a crash {moment}: {type(error).__name__}: {error}\n"
                    f"program: {self.done!r}"
                ) from error

    def do(self, operation: tuple[Any, ...]) -> None:
        """Run one operation of a program, with all its crashes."""
        name, *arguments = operation
        self.done.append(operation)
        self.operation = name
        getattr(self, f"do_{name}")(*arguments)
        self.judge()
