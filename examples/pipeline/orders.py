"""Put a shop's orders into a store: `python orders.py STORE FIRST COUNT`.

Every third order is paid, which is a second message with a tag of its own.
"""

from __future__ import annotations

import json
import sys

from brokerstore import Message, MessageStore, StoreConfig

ITEMS = ("teapot", "kettle", "cup", "saucer", "spoon")
SMALL = StoreConfig(mapped_file_size_commit_log=1 << 20, max_hash_slot_num=1000, max_index_num=4000)


def order(number: int) -> dict[str, object]:
    """Return an order, which depends on its number alone."""
    return {
        "order": number,
        "customer": f"customer-{number % 17}",
        "item": ITEMS[number % 5],
        "cents": 100 + 37 * number % 5000,
    }


def messages(first: int, count: int) -> list[Message]:
    """Return a message `created` for each order, and `paid` for some."""
    made = []
    for number in range(first, first + count):
        body = json.dumps(order(number)).encode()
        made.append(Message("orders", body, tags="created", keys=[f"order-{number}"]))
        if number % 3 == 0:
            made.append(Message("orders", body, tags="paid", keys=[f"order-{number}"]))
    return made


def put_orders(folder: str, first: int, count: int) -> int:
    """Put the orders into the store, which is created if necessary; return the number of messages."""
    made = messages(first, count)
    with MessageStore.open(folder, config=SMALL) as store:
        store.create_topic("orders", queues=2)
        store.put_many(made)
    return len(made)


if __name__ == "__main__":
    print(put_orders(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), "messages")
