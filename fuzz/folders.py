"""Whole folders of both engines with bytes changed: verified, read, opened for writing, recovered.

A golden folder lies in memory; each run changes one to four places of its files, looks, and puts the files back.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from fuzz.mutate import mutated
from messagestore import MessageStore
from messagestore.mending.recover import Choice, Recovery
from messagestore.mending.verification import verify_store
from rabbitstore import RabbitStore, apply_recovery, plan_recovery, verify
from storageio import StoreError


class Folder:
    """A folder that is damaged again and again."""

    def __init__(self, golden: Path, work: Path, *, is_rabbit: bool) -> None:
        self.golden, self.work, self.is_rabbit = golden, work, is_rabbit
        shutil.copytree(golden, work)
        self.files = {path.relative_to(work): path.read_bytes() for path in sorted(work.rglob("*")) if path.is_file()}

    def run(self, seed: int) -> None:
        """One damage; every tenth run also goes through a recovery and a writing opening, which must end sound or by name."""
        chance = random.Random(seed)
        changed = chance.sample(sorted(self.files), chance.randint(1, 3))
        for name in changed:
            (self.work / name).write_bytes(self._damaged(chance, self.files[name]))
        try:
            self.look()
            if seed % 10 == 0:
                self.mend()
        finally:
            if seed % 10 == 0:
                shutil.rmtree(self.work)
                shutil.copytree(self.golden, self.work)
            else:
                for name in changed:
                    (self.work / name).write_bytes(self.files[name])

    def _damaged(self, chance: random.Random, data: bytes) -> bytes:
        """In a window, so that large files change in small places."""
        at = chance.randrange(len(data)) if data else 0
        window = data[at : at + 64]
        made = mutated(chance, [window])
        keeps_size = chance.random() < 0.8
        return data[:at] + (made[: len(window)].ljust(len(window), b"\0") if keeps_size else made) + data[at + 64 :]

    def look(self) -> None:
        """An answer or a named error."""
        try:
            if self.is_rabbit:
                verify(str(self.work))
                list(RabbitStore.open(str(self.work), "r").messages())
            else:
                verify_store(str(self.work))
                self._read()
        except StoreError:
            return

    def _read(self) -> None:
        with MessageStore.open(self.work, "r") as store:
            for topic in store.topics():
                for queue_id in store.queue_ids(topic):
                    store.get(topic, queue_id, store.min_offset(topic, queue_id))
            store.query("HotTopic", "hot-0")

    def mend(self) -> None:
        """A recovery that says it is done leaves nothing wrong that a second one would mend."""
        try:
            if self.is_rabbit:
                for _ in range(3):  # what a first one drops can have hidden other damage
                    apply_recovery(plan_recovery(str(self.work)))
                left = {action.kind for action in plan_recovery(str(self.work)).actions}
                assert left <= {"write_name"}, f"a second recovery has something to do: {left}"  # a name need not be found
                RabbitStore.open(str(self.work), "r+").close()
            else:
                Recovery(str(self.work), Choice.SKIP).apply()
                left = Recovery(str(self.work), Choice.SKIP).plan().actions
                assert not left, f"a second recovery has something to do: {left}"
                MessageStore.open(self.work, "a").close()
        except StoreError:
            return
