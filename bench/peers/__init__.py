"""Our store beside those that people use instead: RocketMQ's (Java), LMDB, RocksDB, SQLite, persist-queue, a plain file.

    python -m bench.peers [--only WORD ...] [--rounds 5] [--scale 1.0] [--folder DIR] [--json FILE]

Both sides take turns in one run, and the side that starts changes every round.  A ratio is ours divided by the peer's in one
round, so above 1 ours is faster.  Rows are kept in docs/performance.json, from which
`bench.peers.page` writes the tables of docs/performance.md.
"""
