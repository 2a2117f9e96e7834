"""A message that is not there, in a folder that nothing is wrong with."""

from __future__ import annotations

from storageio import StoreError


class NoSuchMessage(StoreError):
    """Exit code 1, as for every answer that is none; `next_step` says what to run."""

    def __init__(self, text: str, next_step: str) -> None:
        """`next_step` is a whole line."""
        super().__init__(text)
        self.add_note(next_step)
