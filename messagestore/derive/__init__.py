"""Derive what the log alone determines: units of consume queues and items of the key index.

`walk.Derivation` is the one walk. It runs the kernel (`_dispatch_cy`) over ranges of whole records and gives runs of units and
index items to a sink, then the records whose units are in queues of other topics. What becomes of them is the sink's choice:

    write       `queues.WriteSink` appends them, in an open store and in a rebuild
    compare     `cross_check.CrossCheck` compares them with the files
    count       `read.undispatched` counts the units that the queues lack
    rows        `sparkstore.jobs.dispatching` makes rows of them

`kinds/` has one file for each kind of queue: the rule of its units, how they are checked, and how they are rebuilt.
"""
