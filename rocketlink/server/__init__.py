"""A broker and name server for one machine: official RocketMQ clients on a store of this process.

- `connections`: TCP, frames and limits; one thread runs an asyncio loop for all connections
- `clients`: heartbeats, consumer groups, locks of queues
- `sending`, `pulling`, `lookups`, `tables`: requests by what they do; `requests` joins them
- `broker`: `BrokerServer`, with ports, loop and threads

A request is answered with the store's own rules, so a real broker continues the folder afterwards.  There is no clustering.
"""
