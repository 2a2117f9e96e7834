"""RocketMQ's replication of the log from a master to a slave (docs/formats/rocketmq-ha.md)."""
