"""The real rocketmq-store and ours open what the other wrote or repaired, and write the same bytes."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import FlushMode, MessageStore
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from tests.amounts import amount
from tests.messagestore import test_recover as damage
from tests.stores import log_records

from .answers import assert_agree, for_java, our_messages
from .folders import JAVA_NAMES, LOG_SIZE, LONG_TOPIC, QUEUE_SIZE, SIZES, START_MS, Ticking, ours, write_mixed
from .jvm import prepare_or_skip, why_not
from .real_store import RealStore, RealStores

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]
DAMAGED_SIZES = dict(zip(JAVA_NAMES, (LOG_SIZE, QUEUE_SIZE, 50, 400), strict=True))
SEQUENCES, OPEN_AT_ONCE = amount(80, 200), 40
ROUNDS = 3


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealStores]:
    """Start one JVM for the module, since starting is slow."""
    prepare_or_skip()
    made = RealStores(tmp_path_factory.mktemp("jvm") / "stderr")
    yield made
    made.end()


def copy_of(folder: Path, name: str) -> Path:
    """Copy a folder, since the real store changes what it opens."""
    copy = folder.with_name(name)
    shutil.copytree(folder, copy)
    return copy


def judge(jvm: RealStores, folder: Path, sizes: dict[str, int] = SIZES, **settings: Any) -> RealStore:
    """Open a copy in the real store and assert that its answers equal ours."""
    real = jvm.open(copy_of(folder, "judged"), **sizes, **settings)
    with MessageStore.open(folder, "r", ours() if sizes is SIZES else damage.SMALL) as store:
        assert_agree(folder, store, real)
    return real


# What recovery leaves


@pytest.mark.parametrize("name", ["crash-torn", "crash-lost-cq"])
def test_the_real_store_opens_its_own_crashed_store_after_our_recovery(jvm: RealStores, fixture_store: Any, name: str) -> None:
    """The real store continues a folder that it left torn and that we repaired."""
    fixture = fixture_store(name, own=True)
    assert not Recovery(str(fixture.store), Choice.SKIP, ours()).apply().needs_choice
    real = judge(jvm, fixture.store)
    before = fixture.expected("before.json" if name == "crash-lost-cq" else "recovered.json")
    offsets = [message["physical_offset"] for message in real.invoke("messages")["messages"]]
    assert offsets == [one["physicalOffset"] for one in before["messages"]]
    append_by_java(real, 5, START_MS + 10**9)
    real.close()


@pytest.fixture(scope="module", params=[True, False], ids=["whole-record-crc", "body-crc"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store of five log files, to be damaged."""
    folder = tmp_path_factory.mktemp("original") / "store"
    with MessageStore.open(
        folder, config=damage.SMALL.but(enabled_append_prop_crc=request.param), clock=damage.Clock()
    ) as store:
        for number in range(damage.COUNT):
            body = b"%06d " % number + b"x" * (number * 37 % 600)
            store.put(Message(f"topic-{number % 3}", body, queue_id=number % 2, tags="t", keys=[f"key-{number}"]))
    return folder


def damage_bit(folder: Path, messages: list[Any]) -> set[int]:
    victim = damage.second_record(messages, 1)
    damage.flip(damage.log_file(folder, 1), victim.physical_offset % LOG_SIZE + 90)
    return {victim.physical_offset}


DAMAGE = [damage_bit, *damage.DAMAGE]


@pytest.mark.parametrize("choice", [Choice.SKIP, Choice.TRUNCATE], ids=lambda choice: choice.value)
def test_the_real_store_opens_a_damaged_store_after_our_recovery(
    jvm: RealStores, original: Path, tmp_path: Path, choice: Choice
) -> None:
    """For all damage, skipped by fillers or cut, the real store can append afterwards."""
    has_crc = "__CRC32#" in our_messages(original)[0]["properties"]
    judged: list[tuple[RealStore, Path, list[Any]]] = []
    for damaged in DAMAGE:
        folder = tmp_path / damaged.__name__ / "store"
        shutil.copytree(original, folder)
        messages = log_records(folder)
        lost = damaged(folder, messages)
        Recovery(str(folder), choice, damage.SMALL).apply()  # the configuration has the sizes of files that are gone
        kept = {message["physical_offset"] for message in our_messages(folder)}
        if choice is Choice.SKIP:
            assert {message.physical_offset for message in messages} - lost <= kept, damaged.__name__
        real = judge(jvm, folder, DAMAGED_SIZES, enabledAppendPropCRC=has_crc)
        append_by_java(real, 3, START_MS + 10**9)
        judged.append((real, folder.with_name("judged"), our_messages(folder)))
    jvm.close([real for real, _, _ in judged])
    for _, folder, before in judged:
        assert our_messages(folder)[: len(before)] == before and len(our_messages(folder)) == len(before) + 3


def append_by_java(real: RealStore, count: int, clock_ms: int, topic: str = "java") -> list[list[Any]]:
    """Append messages with keys and tags through the real store; return its results."""
    reported = []
    for number in range(count):
        message = Message(topic, b"by java %d" % number, queue_id=number % 2, born_timestamp_ms=clock_ms)
        message.born_host = message.store_host = "127.0.0.1:10911"
        properties = b"KEYS\x01java-%d\x02TAGS\x01J\x02" % number
        reported.append(for_java(message, properties, clock_ms + number))
    results = real.invoke("put", messages=reported)
    assert {result[0] for result in results} == {"PUT_OK"}
    return results


# Ours and theirs in turn


@pytest.mark.parametrize("mode", list(FlushMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("has_crc", [True, False], ids=["crc", "plain"])
def test_both_stores_write_one_folder_in_turn(jvm: RealStores, tmp_path: Path, mode: FlushMode, has_crc: bool) -> None:
    """Both stores open, compare and continue one folder in turn, with retention in between."""
    folder = tmp_path / "store"
    config = ours(enabled_append_prop_crc=has_crc, flush_disk_type=mode)
    settings = SIZES | {"enabledAppendPropCRC": has_crc, "flushDiskType": mode.value}
    clock_ms = START_MS
    for turn in range(ROUNDS):
        with MessageStore.open(folder, config=config, clock=Ticking(clock_ms)) as store:
            write_mixed(store, range(turn * 700, turn * 700 + 700))
            if turn:
                low = store.earliest_time()
                store.delete_before(LOG_SIZE * (2 * turn))
                assert store.earliest_time() > low
        before = our_messages(folder)
        real = jvm.open(folder, **settings)
        with MessageStore.open(folder, "r", config) as store:
            assert_agree(folder, store, real)
        clock_ms = before[-1]["store_timestamp_ms"] + 1000
        results = append_by_java(real, 150, clock_ms)
        clock_ms += 1000
        real.close()
        after = our_messages(folder)
        assert after[: len(before)] == before
        assert [one["physical_offset"] for one in after[len(before) :]] == [result[1] for result in results]
        with MessageStore.open(folder, "r", config) as store:
            assert [one.physical_offset for one in store.query("java", "java-7")][-1] == results[7][1]
        assert len(list((folder / "commitlog").iterdir())) > 3 and (folder / "index").is_dir()
    assert len(list((folder / "index").iterdir())) > 1, "the index was meant to roll"
    assert not Recovery(str(folder), Choice.REFUSE, config).plan().findings


# The same puts, the same bytes


def properties_text(pairs: list[tuple[str, str]]) -> bytes:
    return b"".join(f"{name}\x01{value}\x02".encode() for name, value in pairs)


def drawn(random_: random.Random, hosts: tuple[str, str], clock_ms: int, plain: bool = False) -> tuple[Message, dict[str, Any]]:
    """Return a random message, for our store and for the driver."""
    pairs = []
    keys = [f"k{random_.randrange(40)}" for _ in range(random_.choice([0, 1, 1, 3]))]
    tag = random_.choice([None, "A", "ключ", "t" * 30])
    more = {f"p{n}": "v" * random_.randrange(1, 20) for n in range(random_.choice([0, 0, 2]))}
    pairs += [("KEYS", " ".join(keys))] if keys else []
    pairs += [("TAGS", tag)] if tag else []
    pairs += [("UNIQ_KEY", f"U{random_.randrange(1 << 60):X}")] if random_.random() < 0.3 else []
    raw = properties_text(pairs + list(more.items()))
    size = random_.choice([0, 1, random_.randrange(300), random_.randrange(300), random_.randrange(9000)])
    sys_flag = 0 if plain else random_.choice([0, 0, 0, 1, 4, 8, 12])
    message = Message(
        "bulk" if plain else random_.choice(["a", "b", "Тема", "c%d", LONG_TOPIC]), random_.randbytes(size),
        queue_id=random_.randrange(3), flag=random_.randrange(-5, 5), sys_flag=sys_flag,
        born_timestamp_ms=clock_ms - random_.randrange(1000), born_host=hosts[0], store_host=hosts[1],
        reconsume_times=random_.randrange(3), prepared_transaction_offset=random_.choice([0, 0, 77]),
        properties_raw=raw,
    )  # fmt: skip
    return message, for_java(message, raw, clock_ms)


def run_sequence(random_: random.Random, store: MessageStore, clock: list[int], real: RealStore) -> None:
    """Put the same messages and batches into both stores, and assert equal results."""
    for _ in range(random_.randrange(5, 60)):
        clock[0] += random_.choice([0, 1, 700])
        hosts = (random_.choice(["10.0.0.1:1", "[2001:db8::1]:65535"]), random_.choice(["127.0.0.1:10911", "[::2]:10911"]))
        if random_.random() < 0.1:
            reported = [drawn(random_, hosts, clock[0], plain=True) for _ in range(random_.randrange(1, 6))]
            for message, java in reported:
                message.queue_id = java["queue_id"] = reported[0][0].queue_id
                message.born_timestamp_ms = java["born_timestamp_ms"] = reported[0][0].born_timestamp_ms
                message.reconsume_times = java["reconsume_times"] = 0
                message.prepared_transaction_offset = java["prepared_transaction_offset"] = 0
            result = store.put_batch("bulk", reported[0][0].queue_id, [message for message, _ in reported], check=False)
            found = real.invoke("batch", messages=[java for _, java in reported], clock=clock[0])
        else:
            message, java = drawn(random_, hosts, clock[0])
            result = store.put(message, check=False)
            (found,) = real.invoke("put", messages=[java])
        expected = [result.status.name]
        if expected == ["PUT_OK"]:
            assert found[:2] == [*expected, result.physical_offset], found
        else:
            assert found == expected


def comparable(folder: Path) -> dict[str, Any]:
    """Return the files of log and queues by name, and index files by age, since their names are times."""
    found: dict[str, Any] = {}
    for part in ("commitlog", "consumequeue"):
        paths = [path for path in sorted((folder / part).rglob("*")) if path.is_file()]
        found |= {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    index = folder / "index"
    for number, path in enumerate(sorted(index.iterdir()) if index.is_dir() else []):
        found[f"index {number}"] = path.read_bytes()
    return found


@pytest.mark.timeout(600)
def test_the_same_puts_make_the_same_bytes(jvm: RealStores, tmp_path: Path) -> None:
    """Random sequences with a fixed clock give equal bytes in log, queues and index."""
    seed = int(os.environ.get("BROKERSTORE_SEED") or random.SystemRandom().randrange(1 << 32))
    print("BROKERSTORE_SEED", seed)
    edges = [*range(0, SEQUENCES, OPEN_AT_ONCE), SEQUENCES]
    for first, last in pairwise(edges):
        open_ones = []
        for number in range(first, last):
            random_ = random.Random(f"{seed} {number}")
            clock = [START_MS + number]
            has_crc = random_.random() < 0.5
            real = jvm.open(
                tmp_path / f"java-{number}", clock[0], **SIZES | {"maxIndexNum": 60, "maxHashSlotNum": 20},
                enabledAppendPropCRC=has_crc,
            )  # fmt: skip
            config = ours(enabled_append_prop_crc=has_crc, max_index_num=60, max_hash_slot_num=20)
            with MessageStore.open(tmp_path / f"ours-{number}", config=config, clock=_held(clock)) as store:
                run_sequence(random_, store, clock, real)
            open_ones.append(real)
        jvm.close(open_ones)
        for number in range(first, last):
            java, mine = (comparable(tmp_path / f"{name}-{number}") for name in ("java", "ours"))
            assert list(mine) == list(java), f"seed {seed}, sequence {number}"
            different = [name for name in mine if mine[name] != java[name]]
            assert not different, f"seed {seed}, sequence {number}: {different}"
            for name in ("java", "ours"):
                shutil.rmtree(tmp_path / f"{name}-{number}")


LMQ_NAMES = ["%LMQ%a", "%LMQ%b", "%LMQ%c/d", "%LMQ%Ж"]  # the one with a slash gets offsets but no queue
LIGHT_SEQUENCES = amount(5, 20)


def test_the_same_puts_to_lmqs_make_the_same_queues(jvm: RealStores, tmp_path: Path) -> None:
    """With enableLmq, queues and index have equal bytes, and the records are equal but for the order of properties.

    The real store takes that order from a hash map when it adds the offsets.
    """
    reals = []
    for number in range(LIGHT_SEQUENCES):
        random_ = random.Random(number)
        clock = [START_MS + number]
        settings = SIZES | {"maxIndexNum": 60, "maxHashSlotNum": 20}
        real = jvm.open(tmp_path / f"java-{number}", clock[0], **settings, enableLmq=True, enableMultiDispatch=True)
        config = ours(enabled_append_prop_crc=False, max_index_num=60, max_hash_slot_num=20, enable_lmq=True)
        with MessageStore.open(tmp_path / f"ours-{number}", config=config, clock=_held(clock)) as store:
            for _ in range(random_.randrange(10, 60)):
                clock[0] += random_.choice([0, 1, 700])
                message, java = drawn(random_, ("10.0.0.1:1", "127.0.0.1:10911"), clock[0])
                if random_.random() < 0.5:
                    message.properties_raw, message.keys, message.tags = None, ["k1", "k2"], "T"
                    names = ",".join(random_.sample(LMQ_NAMES, random_.randrange(1, 4)))
                    message.properties = {"n": "v", "INNER_MULTI_DISPATCH": names}
                    raw = properties_text([("KEYS", "k1 k2"), ("TAGS", "T"), *message.properties.items()])
                    java = for_java(message, raw, clock[0])
                result = store.put(message, check=False)
                assert [[result.status.name, result.physical_offset]] == [
                    reported[:2] for reported in real.invoke("put", messages=[java])
                ]
        reals.append(real)
    jvm.close(reals)
    for number in range(LIGHT_SEQUENCES):
        folders = [tmp_path / f"{name}-{number}" for name in ("java", "ours")]
        assert our_messages(folders[0]) == our_messages(folders[1]), number
        java, mine = ({name: data for name, data in comparable(one).items() if "commitlog" not in name} for one in folders)
        assert java == mine and any("%LMQ%Ж" in name for name in mine), number


def _held(clock: list[int]) -> Callable[[], int]:
    return lambda: clock[0]


def test_the_real_store_continues_a_sparse_store_of_default_sizes(jvm: RealStores, tmp_path: Path) -> None:
    """With blocks for 60 messages only, it puts 100,000 more over the end of a file of 1 GiB; ours finds and continues all."""
    folder = tmp_path / "store"
    with MessageStore.open(folder) as store:
        for number in range(60):
            store.put(Message("ours", b"%d" % number, keys=[f"ours-{number}"], queue_id=0))
    assert sum(path.stat().st_blocks * 512 for path in folder.rglob("*")) < 100 << 20  # what `du` counts
    assert (folder / "commitlog" / ("0" * 20)).stat().st_size == 1 << 30
    real = jvm.open(folder)
    message = Message("theirs", b"x" * 11_000, queue_id=0, born_timestamp_ms=START_MS)
    message.born_host = message.store_host = "127.0.0.1:10911"
    end = real.invoke("stream", message=for_java(message, b"TAGS\x01t\x02", 0), count=100_000, queues=4, quiet=True)["end"]
    real.close()
    assert end > 1 << 30 and len(list((folder / "commitlog").iterdir())) == 2
    report = verify_store(str(folder))
    assert (report.problems, report.counts()["records"], report.counts()["units"]) == ([], 100_060, 100_060)
    with MessageStore.open(folder, "r+") as store:
        assert store.put("ours", b"60", queue_id=0).queue_offset == 60
        assert [store.max_offset("theirs", queue_id) for queue_id in range(4)] == [25_000] * 4
        assert [one.queue_offset for one in store.query("theirs", "key-99999")] == [24_999]
        assert [one.body for one in store.query("ours", "ours-59")] == [b"59"]


# After a kill


@pytest.mark.parametrize("mode", list(FlushMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("way", ["open", "recover"])
def test_messages_acknowledged_by_a_killed_real_store_survive(
    tmp_path: Path, jvm: RealStores, way: str, mode: FlushMode
) -> None:
    """After SIGKILL during appends our opening or recovery has every acknowledged message."""
    folder = tmp_path / "store"
    victim = RealStores(tmp_path / "stderr", heap="256m")
    try:
        real = victim.open(folder, **SIZES, flushDiskType=mode.value)
        message = Message("T", b"x" * 300, queue_id=0, born_timestamp_ms=START_MS)
        message.born_host = message.store_host = "127.0.0.1:10911"
        reported = for_java(message, b"TAGS\x01t\x02", 0)
        victim.tell("stream", id=real.number, message=reported, count=1 << 20, queues=4)
        acknowledged = [victim.answer() for _ in range(3000)]
        victim.kill()
        assert victim.process.stdout is not None
        rest = victim.process.stdout.read().split(b"\n")[:-1]
        acknowledged += [[int(number) for number in line.strip(b"[]").split(b",")] for line in rest]
    finally:
        victim.end()
    if way == "recover":
        Recovery(str(folder), Choice.REFUSE, ours()).apply()
    with MessageStore.open(folder, "r+", ours()) as store:
        for offset, number in acknowledged:
            page = store.get("T", number % 4, number // 4, 1)
            assert (page.messages[0].physical_offset, page.messages[0].keys) == (offset, [f"key-{number}"])
        for offset, number in acknowledged[::37]:
            assert [found.physical_offset for found in store.query("T", f"key-{number}")] == [offset]
    judge(jvm, folder).close()
