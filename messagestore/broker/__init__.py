"""What a RocketMQ broker keeps and does beside its log: configuration files and message services."""
