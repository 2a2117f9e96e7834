"""A public kit for testing stores, ours and what is built on them, against crashes.

- `rocketmq_lab`: programs on a `MessageStore` over a disk that forgets, every crash of every step opened and checked
- `rocketmq_check`, `rocketmq_ledger`: what must hold after a crash, and the memory of what was promised

The disk itself is `storageio.testing.ForgettingDisk`: any code that takes a `Disk` can be run on it.
"""
