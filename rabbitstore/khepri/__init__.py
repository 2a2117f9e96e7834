"""Read Khepri, in which a server of RabbitMQ 4 keeps its declarations (docs/formats/rabbitmq-metadata.md#khepri).

store       the log and the snapshots of `rabbitmq_metadata`: the tree after the last entry
tree        the tree: put, delete, conditions, and nodes that go with others
transaction the functions of Khepri that a transaction calls
beam        the compiled functions that the log has for transactions, as instructions
execution   executes such a function
functions   the functions of Erlang's library and of Khepri that it may call
"""
