"""Configuration files and message services that a RocketMQ broker has beside its log."""
