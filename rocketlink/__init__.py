"""Connections to live RocketMQ brokers and clients.

`ha` has RocketMQ's replication protocol (docs/formats/rocketmq-ha.md): `Replica` follows the log of a running broker into a
store here, and `HaMaster` serves a store of ours to a real slave.  `remoting` has the request protocol of brokers and clients
(docs/formats/rocketmq-remoting.md).  `server` has `BrokerServer`, which serves a store to official clients.

A replica acknowledges only what is durable here, and compares its last record with the master's at every connection: a master
that was truncated or replaced is refused by `MasterDiffers`, and nothing is overwritten.  `promote` turns a replica's folder
into a store of its own.
"""

from __future__ import annotations

from .errors import MasterDiffers, RemoteError, WrongFrame
from .ha.master import HaMaster
from .ha.promotion import promote
from .ha.replica import Replica, ReplicaStatus
from .server.broker import BrokerServer

__all__ = ["BrokerServer", "HaMaster", "MasterDiffers", "RemoteError", "Replica", "ReplicaStatus", "WrongFrame", "promote"]
