"""Check and repair store folders that no process has open.

`verification` only reads. `recover` plans and executes a repair, and `rebuild_store` rebuilds queues and index. `damage`,
`fillers` and `repair_files` are their steps. What is compared with the log and rebuilt from it is in `messagestore/derive/`;
what every open does by itself is in `messagestore/recovery/`.
"""
