"""The bytes of RabbitMQ's files: constants, readers and writers.

Nothing here opens a file.  A reader takes the bytes of a file and the file's name for its errors; it adds damage to a list of
`Finding` and goes on, or raises `StoreCorrupt`.  `layout` has every file as a table.
"""
