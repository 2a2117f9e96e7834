"""Write path: puts, group commit, dispatch into queues and index, flushing, the write pool, and retention."""
