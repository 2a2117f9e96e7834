"""What a broker keeps beside its log as JSON, and its own properties file.

`config/*.json`: topics, subscription groups, offsets of consumers and of delay levels, each read and written as RocketMQ does
(unquoted integer keys, `.bak` beside it, durable replace).  `broker.conf` is read, never written.  Tables know nothing of the
log; the engine and `repair` ask them.
"""
