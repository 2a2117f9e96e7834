"""Bodies that a real client compressed, read from a real broker's store."""

from __future__ import annotations

import zlib
from typing import Any

from messagestore import MessageStore

COMPRESSED = 0x1


def test_bodies_of_a_real_client_come_back_as_they_were_sent(fixture_store: Any) -> None:
    """Every compression type is covered; the checksum is that of the body before compression."""
    fixture = fixture_store("broker-live")
    sent = {ack["msgId"]: (ack["bodyLength"], ack["bodyCrc32"]) for ack in fixture.expected()["acks"] if ack.get("bodyCrc32")}
    checked = 0
    with MessageStore.open(fixture.store, "r") as store:
        for topic in store.topics():
            for queue_id in store.queue_ids(topic):
                for message in store.read(topic, queue_id):
                    body = store.plain_body(message)
                    expected = sent.get(message.properties.get("UNIQ_KEY", ""))
                    if expected is not None and message.sys_flag & COMPRESSED:
                        assert (len(body), zlib.crc32(body)) == expected
                        checked += 1
                    elif not message.sys_flag & COMPRESSED:
                        assert body == message.body
    assert checked >= 3
