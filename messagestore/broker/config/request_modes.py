"""Read and write `config/messageRequestMode.json`: which groups read a topic in POP mode."""

from __future__ import annotations

from typing import NamedTuple

from .config_files import Document
from .config_table import ConfigTable

PULL, POP = "PULL", "POP"


class RequestMode(NamedTuple):
    """How a group reads a topic.

    In POP mode each consumer takes from every queue if `share_queues` is 0; else from its own and those of so many others.
    """

    mode: str = PULL
    share_queues: int = 0


class RequestModes(ConfigTable):
    """The mode of each topic and group; only groups with a mode of their own are listed."""

    file_name = "messageRequestMode.json"
    table_name = "messageRequestModeMap"

    def _take(self, table: Document) -> None:
        self._modes: dict[tuple[str, str], RequestMode] = {}
        self._raw: Document = {}
        for topic, groups in table.items():
            if not isinstance(groups, dict):
                raise self.corrupt(f"{self.table_name}.{topic}", "a map", groups)
            for group, mode in groups.items():
                where = f"{self.table_name}.{topic}.{group}"
                if not isinstance(mode, dict) or not isinstance(mode.get("mode"), str):
                    raise self.corrupt(where, "a map with a mode", mode)
                share = self.number(mode, "popShareQueueNum", 0, where=where)
                self._modes[str(topic), str(group)] = RequestMode(mode["mode"], share)
            self._raw[str(topic)] = dict(groups)

    def _fill(self, document: Document) -> None:
        document.pop("dataVersion", None)  # a broker's file has none
        document[self.table_name] = self._raw

    def get(self, topic: str, group: str) -> RequestMode:
        """Return how a group reads a topic: by pulling, if nothing else was set."""
        with self._lock:
            return self._modes.get((topic, group), RequestMode())

    def put(self, topic: str, group: str, mode: RequestMode) -> None:
        """Set how a group reads a topic."""
        with self._lock:
            self._modes[topic, group] = mode
            groups = self._raw.setdefault(topic, {})
            known = {"consumerGroup": group, "mode": mode.mode, "popShareQueueNum": mode.share_queues, "topic": topic}
            groups[group] = groups.get(group, {}) | known
            self._change()

    def pop_groups(self) -> list[tuple[str, str]]:
        """Return topic and group of each group in POP mode, sorted."""
        with self._lock:
            return sorted(pair for pair, mode in self._modes.items() if mode.mode == POP)
