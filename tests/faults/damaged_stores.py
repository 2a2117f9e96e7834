"""RocketMQ stores to be damaged: the kinds of their files, and which damages a seed chooses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from commitlog import Message
from messagestore import MessageStore, StoreConfig
from messagestore.broker.config.consumer_offsets import ConsumerOffsets
from messagestore.broker.config.subscription_groups import SubscriptionGroups
from storageio import REAL_DISK
from tests.faults.file_damage import HOWS, Damage, Damager, copied
from tests.faults.golden import unpacked
from tests.interop.rocketmq.folders import SIZES, SLOTS, START_MS, Ticking, ours, write_mixed

NUMBERED = re.compile(r"\d{17,20}")
REAL = (
    "plain", "propcrc", "broker-live", "broker-ext", "broker-timer", "broker-pop", "lmq", "batchcq", "cqext", "crash-torn",
    "broker-rocksdb", "broker-compaction", "broker-config-v2",
)  # fmt: skip
OURS = ("ours-clean", "ours-killed", "ours-pool")  # the last one killed with records that only the ring has
OTHERS = {"broker-live": "broker-ext", "broker-ext": "broker-live", "broker-timer": "broker-pop", "broker-pop": "broker-timer"}
SLOTS_OF_OURS = 100  # an index file is full after 399 keys, so there are key filters
TIMER_LOG_OF_REAL, TIMER_LOG_OF_OURS = 52_000, 5200
SETTINGS: dict[str, dict[str, Any]] = {  # of the real store, beside the sizes that all have
    "lmq": {"enableLmq": True, "enableMultiDispatch": True},
    "batchcq": {"mapperFileSizeBatchConsumeQueue": 920, "batch_topics": ("BcqTopic", "BcqOdd")},
    "cqext": {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 2048},
    "broker-rocksdb": {"storeType": "defaultRocksDB"},
    "broker-ext": {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 4096},
}


class Template(NamedTuple):
    """A folder that is copied and damaged; `older` is the same store at an earlier time, `other` another store."""

    name: str
    folder: Path
    older: Path | None
    other: Path
    slots: int = SLOTS

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings with which a real store opens it."""
        timers = {"mappedFileSizeTimerLog": TIMER_LOG_OF_OURS if self.name in OURS else TIMER_LOG_OF_REAL}
        index = {"maxHashSlotNum": self.slots, "maxIndexNum": 4 * self.slots}
        return SIZES | index | timers | SETTINGS.get(self.name, {})


def template(name: str, above: Path) -> Template:
    """Make a template below a folder."""
    if name in OURS:
        older, folder = written_by_us(above / name, name)
        return Template(name, folder, older, unpacked("plain", above / "other"), SLOTS_OF_OURS)
    folder = unpacked(name, above)
    older = copied(folder, above / f"{name}-older")
    for backup in older.glob("config/*.bak"):
        backup.rename(backup.with_suffix(""))
    for path in older.rglob("*"):
        if path.is_file() and NUMBERED.fullmatch(path.name) and path.parent.parent.name != "compaction":
            _set_back(path)
    return Template(name, folder, older, unpacked(OTHERS.get(name, "plain" if name != "plain" else "propcrc"), above / "other"))


def _set_back(path: Path) -> None:
    """Give a file of units or records its earlier content: a log ends at a record, other files at a unit."""
    data = path.read_bytes()
    used = len(data.rstrip(b"\0"))
    if path.parent.name == "commitlog":
        ends, at = [0], 0
        while at + 8 < used and 0 < (size := int.from_bytes(data[at : at + 4], "big")) <= used - at + 8:
            at += size
            ends.append(at)
        keep = ends[len(ends) * 2 // 3]
    else:
        keep = used // 20 * 2 // 3 * 20 if path.parent.parent.parent.name == "consumequeue" else used
    path.write_bytes(data[:keep] + bytes(len(data) - keep))


def written_by_us(above: Path, name: str) -> tuple[Path, Path]:
    """Write a store in three runs; return its state after the second, and at the end: closed, or with its owner killed."""
    folder, clock = above / "store", Ticking(START_MS)
    for start in (0, 300, 600):
        with MessageStore.open(folder, config=_settings(name, start), clock=clock) as store:
            store.engine.housekeeper.thread.stop()
            write_mixed(store, range(start, start + 300))
            _write_timers(store, start)
            _commit(store, folder, start)
            _filter(store)
            if start == 600:
                copied(folder, above / "killed")
        if start == 300:
            copied(folder, above / "older")
    return above / "older", folder if name == "ours-clean" else above / "killed"


def _settings(name: str, start: int) -> StoreConfig:
    pool = {"transient_store_pool_enable": True, "commit_interval_commit_log_ms": 600_000} if name == "ours-pool" else {}
    return ours(
        enabled_append_prop_crc=start == 300, mapped_file_size_timer_log=TIMER_LOG_OF_OURS, max_hash_slot_num=SLOTS_OF_OURS,
        max_index_num=4 * SLOTS_OF_OURS, **pool,
    )  # fmt: skip


def _filter(store: MessageStore) -> None:
    """Build the key filters, as the housekeeper does."""
    filters = store.engine.key_filters
    assert filters is not None
    with store.engine.housekeeper.guard:
        filters.step(iter(lambda: 0.0, None).__next__)


def _write_timers(store: MessageStore, start: int) -> None:
    for number in range(start, start + 12):
        due = {"TIMER_DELIVER_MS": str(START_MS + 10_000_000 + number * 1000)}
        store.put(Message("timed", b"timer %d" % number, queue_id=0, keys=[f"timer-{number}"], properties=due))


def _commit(store: MessageStore, folder: Path, start: int) -> None:
    """Write progress of two groups, as a broker does."""
    store.engine.settle()
    config = str(folder / "config")
    offsets = ConsumerOffsets(REAL_DISK, config)
    for queue_id in store.queue_ids("topic-0"):
        offsets.commit("topic-0", "group-a", queue_id, store.max_offset("topic-0", queue_id) * 2 // 3)
    offsets.persist()
    groups = SubscriptionGroups(REAL_DISK, config)
    groups.create("group-a", retry_max_times=3 + start // 300)
    groups.persist()


# Which file is of which kind


def kind_of(path: str, names: list[str]) -> str:
    """Return the kind of a file; `names` are all paths of its folder, sorted."""
    top, *rest = path.split("/")
    if top == "commitlog":
        files = [name for name in names if name.startswith("commitlog/")]
        return "log, first" if path == files[0] else "log, last" if path == files[-1] else "log, middle"
    if top == "consumequeue" and "consumequeue/CURRENT" in names:
        return "RocksDB queues"
    if top == "config" and len(rest) > 1:
        return "RocksDB config"
    if top in ("config", "brokerstore", "compaction") and rest:
        return f"{top}/{rest[0]}" if not NUMBERED.fullmatch(rest[-1]) else f"{top}/{rest[0]} file"
    return {"consumequeue": "queue", "consumequeue_ext": "ext queue", "batchconsumequeue": "batch queue"}.get(top, top)


def files_by_kind(folder: Path) -> dict[str, list[str]]:
    """Return the paths of a folder's files by their kind."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    kinds: dict[str, list[str]] = {}
    for name in names:
        if name not in ("lock", "abort.bak"):
            kinds.setdefault(kind_of(name, names), []).append(name)
    return kinds


def all_damages(folder: Path, random: Random) -> list[Damage]:
    """Return one damage of each sort for each kind of file, in random order."""
    kinds = files_by_kind(folder)
    found = [Damage(kind, random.choice(paths), how) for kind, paths in kinds.items() for how in HOWS]
    random.shuffle(found)
    return found


def damaged_copies(made: Template, above: Path, seed: int) -> Iterator[tuple[Path, list[Damage]]]:
    """Yield copies with one damage each, every third with a second one, in an order that the seed gives."""
    random = Random(f"{made.name} {seed}")
    damager = Damager(made.older, made.other, random)
    damages = all_damages(made.folder, random)
    for number, damage in enumerate(damages):
        copy = copied(made.folder, above / str(number) / "store")
        done = [damage] if damager.apply(copy, damage) else []
        second = random.choice(damages)
        if done and number % 3 == 2 and second.path != damage.path and damager.apply(copy, second):
            done.append(second)
        if done:
            yield copy, done
