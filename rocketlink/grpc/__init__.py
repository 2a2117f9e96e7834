"""RocketMQ's gRPC protocol (`apache.rocketmq.v2.MessagingService`) for the store of a server (`docs/formats/rocketmq-grpc.md`).

It needs the extra `grpc`; `server.BrokerServer` imports it only for a server that has a gRPC port.

- `protocol`: the generated modules, from the official Python client
- `messages`: messages of the protocol and of the store
- `sessions`: clients, their settings and what the server sends them by itself
- `sending`, `receiving`, `routes`: requests by what they do; `service` joins them
- `port`: the port, in the loop of the server
"""
