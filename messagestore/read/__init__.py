"""Read path: queues by offset, keys and times, columns, consumers, and followers beside a live writer."""
