"""Read quorum queues of RabbitMQ 3.13 to 4.3, which the library ra writes (docs/formats/rabbitmq-quorum.md).

    quorum/<node>/NNNNNNNN.wal                    the write-ahead log of all queues
    quorum/<node>/<UId>/config, NNNNNNNN.segment  a queue's settings, and its log in segments
    quorum/<node>/<UId>/snapshots/, checkpoints/  states of the queue

`layout`, `wal`, `segment`, `snapshot`, `tables` and `state` decode bytes and open no file; `machine` applies the
commands of a log; `folder` joins the files of one queue, and `check` verifies them.
`repair` plans new files, which `encode` makes; `rabbitstore.staging` puts them in place.
"""

from .folder import QuorumNode, QuorumQueue, quorum_nodes
from .message import QuorumMessage

__all__ = ["QuorumMessage", "QuorumNode", "QuorumQueue", "quorum_nodes"]
