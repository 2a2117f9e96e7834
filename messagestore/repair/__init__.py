"""Checking and repairing a folder that nobody has open: what is wrong, what could be done, and doing it.

`verification` and `agreement` look and change nothing.  `recover` plans and executes; `rebuild_store` makes queues and index
anew; `damage`, `fillers`, `mend_files` and `rebuild` are their steps.  What every opening does by itself lies one room up, in
`log_end.py`.
"""
