"""What a broker with storeType=defaultRocksDB keeps in RocksDB: read and checked (`docs/formats/rocketmq-rocksdb.md`).

`database` opens a database through the package `rocksdict` (extra `rocksdb`), `queues` decodes consume queues, `config` the
configuration, and `check` compares the queues with the log. Nothing here writes to a database.
"""
