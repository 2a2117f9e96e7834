"""Read and write what a broker keeps beside its log: JSON tables and its own properties file.

`config/*.json` holds topics, subscription groups, and offsets of consumers and delay levels. Each is read and written as in
RocketMQ (unquoted integer keys, a `.bak` file, durable replacement). `broker.conf` is read, never written. The tables do not
depend on the log; the engine and `repair` use them.
"""
