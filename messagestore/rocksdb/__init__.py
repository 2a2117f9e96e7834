"""What a broker with storeType=defaultRocksDB keeps in RocksDB: read and checked (`docs/formats/rocketmq-rocksdb.md`).

`database` opens a database through the package `rocksdict` (extra `rocksdb`), `queues` decodes consume queues, `store_rows`
index, timers and transactions, and `config` the configuration. Nothing here writes to a database.
"""
