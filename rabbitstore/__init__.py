"""RabbitMQ style store (work in progress)."""
