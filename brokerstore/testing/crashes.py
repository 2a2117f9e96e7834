"""What the labs of both engines share: every crash of every step is caught, and judged when the step is over."""

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
    """A program on a disk that forgets.  A subclass says what is promised at a moment, and judges one image by it."""

    disk: ForgettingDisk
    kind_of: Callable[[str], str]  # of a file's path

    def __init__(self, seed: int, chances: int, deep: int, limit: int, report: Report | None, tries: bool) -> None:
        """`chances` images by chance at each moment beside the systematic ones; `deep`: crashes inside recovery, seldom.

        `limit`: where all combinations are no more than that, all are tried.  Without `tries` no crash is tried at all.
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
        """What a crash now has to respect, and a hash of it: the same content under another promise is another image."""
        raise NotImplementedError

    def judge_image(self, image: Image, promise: Promise) -> None:
        """One crash: recover, check; now and then recover again, and crash inside the recovery."""
        raise NotImplementedError

    def settle(self) -> None:
        """Whatever the memory outside has to learn before images are judged."""

    def catch(self, operation: str, path: str) -> None:
        """Take the crash images of this moment; they are judged when the operation is over and all it tried is known."""
        if not self.tries:
            return
        kinds = {self.kind_of(unsettled) for unsettled in self.disk.unsettled_paths()}
        promise, key = self.promised()
        for image in self.disk.images(self.random, self.chances, limit=self.limit):
            if self.report.is_new(hash((image.key, key))):
                self.report.count(self.operation, kinds)
                self._caught.append((operation, path, image, promise))

    def judge(self) -> None:
        """Open what was caught, and check it."""
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
        """One operation of a program, with all its crashes."""
        name, *arguments = operation
        self.done.append(operation)
        self.operation = name
        getattr(self, f"do_{name}")(*arguments)
        self.judge()
