"""The reliability lab: programs on a disk that forgets what no sync made durable, with every crash and fault of every step.

- `rocketmq_lab`, `rabbitmq_lab`: run programs on a store over a `ForgettingDisk`; open and check every crash of every step
- `rocketmq_check`, `rabbitmq_check`, `rocketmq_ledger`: what must hold after a crash, and the record of what was promised
- `faults`, `deep`, `reopening`, `machines`: failing calls, crashes inside a recovery, reopened stores, state machines

`lab/run.py` is the command line.  The disk is `storageio.testing.ForgettingDisk`; any code that takes a `Disk` runs on it.
"""
