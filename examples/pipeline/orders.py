"""A shop's orders as messages of a store: `python orders.py STORE FIRST COUNT`.

Every third order is paid, with a message of its own tag.
"""

from __future__ import annotations

import json
import sys

from brokerstore import Message, MessageStore, StoreConfig

ITEMS = ("teapot", "kettle", "cup", "saucer", "spoon")
SMALL = StoreConfig(mapped_file_size_commit_log=1 << 20, max_hash_slot_num=1000, max_index_num=4000)


def order(number: int) -> dict[str, object]:
    """What a customer ordered; the same each time it is asked for."""
    return {
        "order": number,
        "customer": f"customer-{number % 17}",
        "item": ITEMS[number % 5],
        "cents": 100 + 37 * number % 5000,
    }


def messages(first: int, count: int) -> list[Message]:
    """`created`, and for some `paid`."""
    made = []
    for number in range(first, first + count):
        body = json.dumps(order(number)).encode()
        made.append(Message("orders", body, tags="created", keys=[f"order-{number}"]))
        if number % 3 == 0:
            made.append(Message("orders", body, tags="paid", keys=[f"order-{number}"]))
    return made


def put_orders(folder: str, first: int, count: int) -> int:
    """Into the store, which is made if it is not there; how many messages."""
    made = messages(first, count)
    with MessageStore.open(folder, config=SMALL) as store:
        store.create_topic("orders", queues=2)
        store.put_many(made)
    return len(made)


if __name__ == "__main__":
    print(put_orders(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), "messages")
