"""Check and repair store folders that no process has open.

`verification`, `cross_check` and `batch_cross_check` only read. `recover` plans and executes a repair, and `rebuild_store`
rebuilds queues and index. `damage`, `fillers`, `repair_files` and `rebuild` are their steps. What every open does by itself is
in `messagestore/recovery/`.
"""
