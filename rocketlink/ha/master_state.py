"""What a replica asks the master's broker besides the log: settings, the range of its log, topics, groups and offsets."""

from __future__ import annotations

import json
import logging
import os
from typing import Any, NamedTuple

from messagestore import MessageStore
from messagestore.broker.config import fast_json
from messagestore.broker.config.broker_properties import parse_broker_properties
from messagestore.broker.config.config_files import ConfigFile
from messagestore.broker.config.delay_offsets import DelayOffsets
from messagestore.broker.config.subscription_groups import SubscriptionGroups
from storageio import StoreCorrupt

from ..errors import RemoteError, WrongFrame
from ..remoting.client import RemotingClient
from ..remoting.codes import (
    GET_ALL_CONSUMER_OFFSET,
    GET_ALL_DELAY_OFFSET,
    GET_ALL_SUBSCRIPTION_GROUP_CONFIG,
    GET_ALL_TOPIC_CONFIG,
    GET_BROKER_CONFIG,
    GET_BROKER_RUNTIME_INFO,
)

LOG = logging.getLogger(f"brokerstore.{__name__}")
ORIGIN = "the master's answer"
SIZES = (
    "mapped_file_size_commit_log",
    "mapped_file_size_consume_queue",
    "mapped_file_size_consume_queue_ext",
    "max_hash_slot_num",
    "max_index_num",
    "max_message_size",
    "enable_consume_queue_ext",
    "message_delay_level",
)


class MasterSettings(NamedTuple):
    """The port of the master's replication, and the settings that a store beside it needs, by their names in `StoreConfig`."""

    ha_port: int
    sizes: dict[str, Any]


def settings_of(client: RemotingClient) -> MasterSettings:
    """Ask for the broker's properties."""
    found = parse_broker_properties(client.invoke(GET_BROKER_CONFIG).body, file=ORIGIN)
    ha_port = str(found.get("haListenPort", ""))
    if not ha_port.isdigit() or not 0 < int(ha_port) < 1 << 16:
        raise WrongFrame(f"the broker names no replication port: haListenPort is {ha_port!r}")
    return MasterSettings(int(ha_port), {name: found[name] for name in SIZES if name in found})


def log_range(client: RemotingClient) -> tuple[int, int]:
    """Return the first physical offset of the master's log and its end."""
    table = _document(client.invoke(GET_BROKER_RUNTIME_INFO).body).get("table")
    texts = [str(table.get(name)) if isinstance(table, dict) else "" for name in ("commitLogMinOffset", "commitLogMaxOffset")]
    if not all(text.removeprefix("-").isdigit() and len(text) < 20 for text in texts):
        raise WrongFrame(f"the broker does not say where its log begins and ends: {texts}")
    return max(0, int(texts[0])), int(texts[1])


class Metadata:
    """Topics, groups and offsets, which the master's broker knows and its log does not have."""

    def __init__(self, store: MessageStore) -> None:
        """Create it for a replica's store, which keeps the tables below `config/`."""
        self._engine = store.engine
        self._groups = SubscriptionGroups(self._engine.disk, self._engine.paths.config)

    def fetch(self, client: RemotingClient) -> None:
        """Fetch each table and write it if it changed.  What the master refuses or garbles is logged and left as it was."""
        engine = self._engine
        for code, table in (
            (GET_ALL_TOPIC_CONFIG, engine.topics),
            (GET_ALL_CONSUMER_OFFSET, engine.consumer_offsets()),
            (GET_ALL_SUBSCRIPTION_GROUP_CONFIG, self._groups),
        ):
            try:
                table.replace(_document(client.invoke(code).body))
                table.persist()
            except (RemoteError, StoreCorrupt, WrongFrame) as error:
                LOG.warning("%s was not fetched: %s", table.file_name, error)
        self._fetch_delays(client)

    def _fetch_delays(self, client: RemotingClient) -> None:
        """Write the progress of delayed messages, which this side only uses after it became the master."""
        path = os.path.join(self._engine.paths.config, DelayOffsets.file_name)
        try:
            document = _document(client.invoke(GET_ALL_DELAY_OFFSET).body)
            file = ConfigFile(self._engine.disk, path)
            if file.load().document != document:
                file.save(document)
        except (RemoteError, StoreCorrupt, WrongFrame) as error:
            LOG.warning("%s was not fetched: %s", DelayOffsets.file_name, error)


def _document(body: bytes) -> dict[Any, Any]:
    """Return the JSON object of an answer, which may have numbers as keys."""
    found = fast_json.loads(body, file=ORIGIN)
    if not isinstance(found, dict):
        raise WrongFrame(f"an answer that is no JSON object: {json.dumps(found)[:80]}")
    return found
