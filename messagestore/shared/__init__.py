"""One store, many processes: the process that has the lock serves the others.

    store = brokerstore.connect("orders-store")       # in any number of processes
    store.put(Message("orders", b"..."))

- `store.py` has `SharedStore`, the public class.
- `election.py` decides which process is the owner: the one that gets the store's lock. It opens the store for writing.
- `owner.py` serves the others on the socket `brokerstore/owner.socket`; `service.py` answers one request.
- `client.py` has the connections of a process that is not the owner, and takes over when the owner ends.
- `groups.py` has the consumers of all processes at the owner, `consumer.py` has `SharedConsumer`.
- `presence.py` shows which living processes have consumers.
- `news.py` waits for new messages, for event loops.
- `aio.py` has the store for asyncio, which `brokerstore.aio` makes public.
- `protocol.py` has the frames and requests, `answers.py` the answers, `_packing_cy.py` the bytes of messages and results.

A process that is not the owner sends what changes the store to the owner, and reads through its own maps, as a reader beside a
writer does. No body crosses the socket on its way out.

A put is retried at the next owner if the owner ended before its answer. Each message has a UNIQ_KEY property; the next owner
looks for it in the key index, so the message is stored once.
"""
