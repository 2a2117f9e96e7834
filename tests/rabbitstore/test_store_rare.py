"""A message store in moments that seldom come: ids that come back under the collector, clients that die, limits of settings."""

import pytest

from rabbitstore import RabbitSettings, RabbitStore, StoreSettings
from rabbitstore.collector import collect, collect_one
from rabbitstore.records import FEW_IDS, check_record, encode_record, find_any_record
from storageio import InvalidMessage, StoreCorrupt
from storageio.testing import WrappedDisk

from .test_shared_store import fresh, ident, term

QUIET = RabbitSettings(background=False)
EAGER = StoreSettings(file_size_limit=4096, file_garbage_fraction=0.0)


class During(WrappedDisk):
    """Something happens while the collector writes its new file, once."""

    def __init__(self, happens):
        super().__init__()
        self.happens = happens

    def before(self, operation, path):
        if operation == "write" and path.endswith(".rdt") and self.happens is not None:
            happens, self.happens = self.happens, None
            happens()


def test_an_id_that_comes_back_under_the_collector_is_written_again(tmp_path):
    """The merge has left its record out already: one that only counted would be gone with the old file."""
    disk = During(None)
    store = fresh(tmp_path, EAGER, disk)
    client = store.client()
    client.write_many((ident(number), term(number)) for number in range(60))
    store.process()
    client.remove(ident(number) for number in range(0, 60, 3))
    store.process()
    back = [ident(number) for number in range(0, 60, 3)]

    def come_back():
        client.write_many((msg_id, term(int.from_bytes(msg_id, "big"))) for msg_id in back)
        store.process()

    disk.happens = come_back
    assert collect_one(store)
    store.sync()
    assert [store.read(ident(number)) for number in range(60)] == [term(number) for number in range(60)]
    store.check()
    collect(store)
    store.check()
    assert [store.read(ident(number)) for number in range(60)] == [term(number) for number in range(60)]
    store.close()
    again = fresh(tmp_path, EAGER, counts={ident(number): 1 for number in range(60)})
    assert [again.read(ident(number)) for number in range(60)] == [term(number) for number in range(60)]
    again.close()


def test_a_file_whose_last_message_goes_under_the_collector_goes_too(tmp_path):
    """Merged of nothing but garbage by then: deleted when the merge is done, not kept empty."""
    disk = During(None)
    store = fresh(tmp_path, EAGER, disk)
    client = store.client()
    client.write_many((ident(number), term(number)) for number in range(60))
    store.process()
    client.remove(ident(number) for number in range(60) if number % 4)
    store.process()

    def all_go():
        client.remove(ident(number) for number in range(0, 60, 4))
        store.process()

    disk.happens = all_go
    assert collect_one(store)
    collect(store)
    store.sync()
    assert [path.name for path in (tmp_path / "msg_store_persistent").iterdir()] == [f"{store.current}.rdq"]
    store.check()
    store.close()


def test_the_collector_stops_where_it_is_told_or_the_settings_say(tmp_path):
    """So many merges and no more; without the stricter setting a single file is left alone."""
    store = fresh(tmp_path, EAGER)
    client = store.client()
    client.write_many((ident(number), term(number)) for number in range(200))
    store.process()
    client.remove(ident(number) for number in range(200) if number % 2)
    store.process()
    assert collect(store, 2) == 2 and collect(store, 0) == 0
    assert collect(store) > 0
    store.close()
    plain = fresh(tmp_path / "plain", StoreSettings(file_size_limit=4096, file_garbage_fraction=None))
    other = plain.client()
    other.write_many((ident(number), term(number)) for number in range(60))
    plain.process()
    other.remove(ident(number) for number in range(60) if number % 20)
    plain.process()
    merged = collect(plain)
    assert all(plain.read(ident(number)) == term(number) for number in range(0, 60, 20))
    assert collect(plain) == 0 <= merged
    plain.close()


def test_a_transient_store_is_collected_without_a_sync(tmp_path):
    """What does not survive a stop need not be on the disk."""
    path = str(tmp_path / "vhost")
    disk = WrappedDisk()
    settings = RabbitSettings(background=False, store=StoreSettings(file_size_limit=40_000, file_garbage_fraction=0.0))
    with RabbitStore.open(path, settings=settings, disk=disk) as store:
        store.declare_queue("q", mode="lazy", durable=False)
        for number in range(60):
            store.publish("q", b"%02d" % number * 2500, persistent=False)
        store.process()
        held = [store.get("q") for _ in range(60)]
        for delivery in held[::2]:
            store.ack(delivery)
        store.process()
        assert store.collect() > 0
        for delivery in held[1::2]:
            store.requeue(delivery)
        assert [store.get("q").body for _ in range(30)] == [b"%02d" % number * 2500 for number in range(1, 60, 2)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("", {}), ("a\0b", {}), ("x" * 256, {}), ("ä" * 128, {}), ("q", {"mode": "quick"}), ("q", {"max_priority": 256}),
        ("q", {"max_priority": -1}), ("q", {"message_ttl_ms": -1}),
    ],
)  # fmt: skip
def test_a_declaration_that_rabbitmq_would_not_take_is_refused(tmp_path, name, options):
    """By name; no folder is made."""
    with RabbitStore.open(str(tmp_path / "vhost"), settings=QUIET) as store:
        with pytest.raises(InvalidMessage):
            store.declare_queue(name, **options)
        assert store.queue_names() == [] and list((tmp_path / "vhost" / "queues").iterdir()) == []


def test_a_message_whose_file_went_is_named_at_its_fetch(tmp_path):
    """Somebody deleted it under the store: the others of the queue come."""
    path = tmp_path / "vhost"
    settings = RabbitSettings(background=False, store=StoreSettings(file_size_limit=20_000))
    with RabbitStore.open(str(path), settings=settings) as store:
        store.declare_queue("q", mode="lazy")
        for number in range(8):
            store.publish("q", b"%d" % number * 9000)
    with RabbitStore.open(str(path), settings=settings) as store:
        lost = [ident_ for ident_, location in store.parts.persistent.locations.items() if location.file == 1]
        for msg_id in lost:
            del store.parts.persistent.locations[msg_id]
        found, errors = [], 0
        for _ in range(8):
            try:
                found.append(int(store.get("q").body[:1]))
            except StoreCorrupt as error:
                assert "in no file" in str(error)
                errors += 1
    assert errors == len(lost) > 0 and len(found) == 8 - errors == len(set(found))


def test_one_of_very_many_missing_messages_is_found_in_one_pass():
    """Behind damage, among more ids than are looked for one by one."""
    wanted = {ident(number) for number in range(1, 2 * FEW_IDS)}
    record = encode_record(ident(99), b"\x83m\0\0\0\1x")
    assert find_any_record(b"\x55" * 700 + record + b"\x55" * 50, wanted) == ident(99)
    assert find_any_record(b"\x55" * 700 + record[:-1] + b"\x55" * 50, wanted) is None
    assert find_any_record(b"\x55" * 7, wanted) is None


def test_bytes_of_another_length_are_no_record():
    """A file that became shorter under a reader."""
    record = encode_record(ident(1), b"\x83m\0\0\0\1x")
    assert check_record(record, ident(1), len(record))
    assert not check_record(record[:-1], ident(1), len(record))
    assert not check_record(record[:9], ident(1), 9)
