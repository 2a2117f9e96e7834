"""Recovery when a store is opened for writing: find the end of the log and bring queues and index up to it."""
