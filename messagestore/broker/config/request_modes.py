"""Read `config/messageRequestMode.json`: which groups read a topic in POP mode."""

from __future__ import annotations

from .config_files import Document
from .config_table import ConfigTable


class RequestModes(ConfigTable):
    """The mode of each topic and group; only groups with a mode of their own are listed."""

    file_name = "messageRequestMode.json"
    table_name = "messageRequestModeMap"

    def _take(self, table: Document) -> None:
        self._modes: dict[tuple[str, str], str] = {}
        for topic, groups in table.items():
            if not isinstance(groups, dict):
                raise self.corrupt(f"{self.table_name}.{topic}", "a map", groups)
            for group, mode in groups.items():
                if not isinstance(mode, dict) or not isinstance(mode.get("mode"), str):
                    raise self.corrupt(f"{self.table_name}.{topic}.{group}", "a map with a mode", mode)
                self._modes[str(topic), str(group)] = mode["mode"]

    def _fill(self, document: Document) -> None:
        """Change nothing: the table is only read."""

    def pop_groups(self) -> list[tuple[str, str]]:
        """Return topic and group of each group in POP mode, sorted."""
        return sorted(pair for pair, mode in self._modes.items() if mode == "POP")
