"""The RabbitMQ-style store."""
