"""RocketMQ's request protocol: frames, and a client that asks a broker or a name server (docs/formats/rocketmq-remoting.md)."""
