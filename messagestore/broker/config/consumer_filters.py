"""Read and write `config/consumerFilter.json`, the SQL92 filters of consumer groups.

The fields are in `docs/formats/config.md#consumer-filters`. The file has the groups that filter by more than tags. A broker
computes the bitmaps of extended units from it. Unlike the other tables it has no `dataVersion`.
"""

from __future__ import annotations

from dataclasses import dataclass

from storageio import InvalidMessage

from .config_files import Document
from .config_table import INT64_MAX, ConfigTable
from .consumer_offsets import check_key

SQL92 = "SQL92"
BITS_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFilter:
    """One group's filter of one topic.

    Times are milliseconds. `bits` are the positions of ones in the bloom filter of `bit_count` bits.
    """

    topic: str
    group: str
    expression: str
    expression_type: str = SQL92
    born_time_ms: int = 0
    dead_time_ms: int = 0
    is_dead: bool = False
    client_version: int = 0
    bit_count: int = 0
    bits: tuple[int, ...] = ()


class ConsumerFilters(ConfigTable):
    """All consumer filters of a store."""

    file_name = "consumerFilter.json"
    table_name = "filterDataByTopic"

    def _take(self, table: Document) -> None:
        self._raw: dict[tuple[str, str], Document] = {}
        self._filters: dict[tuple[str, str], ConsumerFilter] = {}
        for topic, raw in table.items():
            groups = raw.get("groupFilterData") if isinstance(raw, dict) else None
            if not isinstance(groups, dict):
                raise self.corrupt(f"{self.table_name}.{topic}.groupFilterData", "a map", groups)
            for group, one in groups.items():
                if not isinstance(one, dict):
                    raise self.corrupt(f"{topic}.{group}", "a map", one)
                self._raw[str(topic), str(group)] = one
                self._filters[str(topic), str(group)] = self._parse(str(topic), str(group), one)

    def _parse(self, topic: str, group: str, raw: Document) -> ConsumerFilter:
        where = f"{topic}.{group}"
        bloom = raw.get("bloomFilterData") or {}
        bits = bloom.get("bitPos") or [] if isinstance(bloom, dict) else None
        if not isinstance(bits, list) or not all(isinstance(bit, int) and 0 <= bit < BITS_MAX for bit in bits):
            raise self.corrupt(f"{where}.bloomFilterData", "a map with bitNum and bitPos", bloom)
        times = {name: self.number(raw, name, 0, where=where) for name in ("bornTime", "deadTime", "clientVersion")}
        return ConsumerFilter(
            topic=topic, group=group, expression=self.text(raw, "expression", "", where=where),
            expression_type=self.text(raw, "expressionType", SQL92, where=where), born_time_ms=times["bornTime"],
            dead_time_ms=times["deadTime"], is_dead=self.flag(raw, "dead", False, where=where),
            client_version=times["clientVersion"], bits=tuple(bits),
            bit_count=self.count(bloom, "bitNum", 0, where=where, maximum=BITS_MAX),
        )  # fmt: skip

    def _fill(self, document: Document) -> None:
        document.pop("dataVersion", None)
        before, table = self._map_of(self.table_name), {}
        for topic in [*before, *(topic for topic, _ in self._raw)]:
            groups = {group: raw for (name, group), raw in self._raw.items() if name == topic}
            if groups and topic not in table:
                old = before.get(topic)
                table[topic] = dict(old if isinstance(old, dict) else {}) | {"groupFilterData": groups, "topic": topic}
        document[self.table_name] = table

    def get(self, topic: str, group: str) -> ConsumerFilter | None:
        """Return a group's filter of a topic; None if it filters by tags at most."""
        with self._lock:
            return self._filters.get((topic, group))

    def all(self) -> list[ConsumerFilter]:
        """Return all filters in the order of the file."""
        with self._lock:
            return list(self._filters.values())

    def put(self, one: ConsumerFilter) -> None:
        """Set a group's filter; unknown fields of the file stay."""
        check_filter(one)
        known: Document = {
            "bloomFilterData": {"bitNum": one.bit_count, "bitPos": list(one.bits)}, "bornTime": one.born_time_ms,
            "clientVersion": one.client_version, "consumerGroup": one.group, "dead": one.is_dead,
            "deadTime": one.dead_time_ms, "expression": one.expression, "expressionType": one.expression_type,
            "topic": one.topic,
        }  # fmt: skip
        with self._lock:
            key = one.topic, one.group
            merged = self._raw.get(key, {}) | known
            self._raw[key] = dict(sorted(merged.items(), key=lambda item: str(item[0])))
            self._filters[key] = one
            self._change(counts=False)

    def delete_group(self, group: str) -> bool:
        """Remove a group's filters and return whether there was one."""
        with self._lock:
            gone = [key for key in self._raw if key[1] == group]
            for key in gone:
                del self._raw[key], self._filters[key]
            if gone:
                self._change(counts=False)
            return bool(gone)


def check_filter(one: ConsumerFilter) -> None:
    """Raise `InvalidMessage` for names and numbers that no reader accepts: it would reject the whole file."""
    check_key(one.topic, one.group)
    numbers = (one.born_time_ms, one.dead_time_ms, one.client_version)
    has_bits = 0 <= one.bit_count <= BITS_MAX and all(0 <= bit < BITS_MAX for bit in one.bits)
    if not has_bits or one.born_time_ms < 0 or max(map(abs, numbers)) > INT64_MAX:
        raise InvalidMessage(f"filter of {one.group}: {one.bit_count} bits; times and version {numbers}")
