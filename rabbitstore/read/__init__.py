"""Read a virtual host's folder without changing a byte of it.

`vhost_folder` has its queues and messages, `store_folder` the message files, `queue_folder` the index files, `salvage` what
follows damage in them; `unsupported` finds formats that nothing here may write.
"""
