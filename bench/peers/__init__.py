"""Ours beside the stores that people use instead: RocketMQ's own (Java), LMDB, RocksDB, SQLite, persist-queue, a plain file.

    python -m bench.peers [--only WORD ...] [--rounds 5] [--scale 1.0] [--folder DIR] [--json FILE]

Both sides take turns in one run, who begins changes every round, and a ratio is that of one round: ours to the peer's, so that
above 1 ours is faster.  `bench.peers.page` makes docs/performance.md of the JSON.
"""
