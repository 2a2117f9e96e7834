"""The metrics of a store as Prometheus text, which needs no library, and as OpenTelemetry instruments (extra `otel`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from messagestore import Metrics
from messagestore.write.durations import BOUNDS_S, Histogram
from storageio import StoreClosed, needs_extra

if TYPE_CHECKING:
    from rabbitstore import RabbitMetrics

PREFIX = "brokerstore_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # of an HTTP answer with the text
Labels = dict[str, str]


class HasMetrics(Protocol):
    """A store: `MessageStore`, `SharedStore` or `RabbitStore`."""

    def metrics(self) -> Metrics | RabbitMetrics:
        """Return what it counts."""


class Instrument(NamedTuple):
    """A metric: its name, kind, help, unit, and how to read its values; a value that is unknown is left out."""

    name: str
    kind: str  # "counter" or "gauge"
    help: str
    unit: str
    values: Callable[[Any], Iterator[tuple[Labels, float | None]]]  # of `Metrics` or `RabbitMetrics`


def _one(name: str) -> Callable[[Any], Iterator[tuple[Labels, float | None]]]:
    """Read a field without labels."""

    def values(metrics: Any) -> Iterator[tuple[Labels, float | None]]:
        yield {}, getattr(metrics, name)

    return values


def _sizes(*parts: str) -> Callable[[Any], Iterator[tuple[Labels, float | None]]]:
    """Read the bytes of each part."""
    return lambda metrics: (({"part": part}, getattr(metrics, f"{part}_bytes")) for part in parts)


def _each(rows: str, labels: Labels, name: str) -> Callable[[Any], Iterator[tuple[Labels, float | None]]]:
    """Read a field of each row, with other fields as labels."""

    def values(metrics: Any) -> Iterator[tuple[Labels, float | None]]:
        for row in getattr(metrics, rows):
            yield {label: str(getattr(row, field)) for label, field in labels.items()}, getattr(row, name)

    return values


def _dispatch_failed(metrics: Metrics) -> Iterator[tuple[Labels, float | None]]:
    yield {}, float(metrics.dispatch_failure is not None) if metrics.is_writing else None


_of_queues = partial(_each, "queues", {"topic": "topic", "queue": "queue_id"})
_of_rabbit_queues = partial(_each, "queues", {"queue": "queue"})
_group_lags = _each("groups", {"group": "group", "topic": "topic", "queue": "queue_id"}, "lag")
INSTRUMENTS = (
    Instrument("messages_total", "counter", "Messages that were ever put into a queue.", "1", _of_queues("max_offset")),
    Instrument("queue_messages", "gauge", "Messages in a queue.", "1", _of_queues("messages")),
    Instrument("group_lag_messages", "gauge", "Messages that a group did not acknowledge.", "1", _group_lags),
    Instrument("written_bytes_total", "counter", "End of the log: bytes that were ever written.", "By", _one("written_offset")),
    Instrument("flushed_bytes_total", "counter", "Position before which the log is synced.", "By", _one("flushed_offset")),
    Instrument("dispatched_bytes_total", "counter", "Position of the dispatcher.", "By", _one("dispatched_offset")),
    Instrument("flush_lag_bytes", "gauge", "Bytes that are not synced yet.", "By", _one("flush_lag_bytes")),
    Instrument("dispatch_lag_bytes", "gauge", "Bytes that are in no queue yet.", "By", _one("dispatch_lag_bytes")),
    Instrument("file_bytes", "gauge", "Sizes of files.", "By", _sizes("log", "queue", "index")),
    Instrument("disk_free_bytes", "gauge", "Free bytes of the file system.", "By", _one("free_bytes")),
    Instrument("opening_seconds", "gauge", "Duration of the opening, recovery included.", "s", _one("opening_s")),
    Instrument("clean_stop", "gauge", "Whether the opening found a clean stop.", "1", _one("was_clean_stop")),
    Instrument("dispatch_failed", "gauge", "Whether an error stopped the dispatcher.", "1", _dispatch_failed),
    Instrument("accepts_puts", "gauge", "Whether puts are accepted.", "1", _one("accepts_puts")),
)
RABBIT_INSTRUMENTS = (
    Instrument("queue_ready_messages", "gauge", "Messages of a queue that wait.", "1", _of_rabbit_queues("ready")),
    Instrument("queue_unacked_messages", "gauge", "Messages that a consumer holds.", "1", _of_rabbit_queues("unacked")),
    Instrument("syncs_total", "counter", "Syncs since the opening.", "1", _one("syncs")),
    Instrument("file_bytes", "gauge", "Sizes of files.", "By", _sizes("persistent", "transient")),
    Instrument("disk_free_bytes", "gauge", "Free bytes of the file system.", "By", _one("free_bytes")),
)
DURATIONS: tuple[tuple[str, str, Callable[[Metrics], Histogram | None]], ...] = (
    ("flush_seconds", "Duration of syncs of the log.", lambda metrics: metrics.flush),
    ("dispatch_seconds", "Duration of batches of the dispatcher.", lambda metrics: metrics.dispatch),
)


def prometheus_text(store: HasMetrics, /, **labels: str) -> str:
    """Return a store's metrics in Prometheus' text format, with more labels, such as the name of the store."""
    metrics = _checked(store).metrics()
    lines: list[str] = []
    for instrument in INSTRUMENTS if isinstance(metrics, Metrics) else RABBIT_INSTRUMENTS:
        found = [(more, value) for more, value in instrument.values(metrics) if value is not None]
        if found:
            name = PREFIX + instrument.name
            lines += [f"# HELP {name} {instrument.help}", f"# TYPE {name} {instrument.kind}"]
            lines += [f"{name}{_labels(labels | more)} {_number(value)}" for more, value in found]
    for name, description, read in DURATIONS:
        histogram = read(metrics) if isinstance(metrics, Metrics) else None
        if histogram is not None:
            lines += _histogram_lines(PREFIX + name, description, histogram, labels)
    return "\n".join(lines) + "\n"


def _histogram_lines(name: str, description: str, histogram: Histogram, labels: Labels) -> list[str]:
    bounds = [*(format(bound, "g") for bound in BOUNDS_S), "+Inf"]
    return [
        f"# HELP {name} {description}",
        f"# TYPE {name} histogram",
        *(f"{name}_bucket{_labels(labels | {'le': le})} {count}" for le, count in zip(bounds, histogram.counts, strict=True)),
        f"{name}_sum{_labels(labels)} {_number(histogram.sum_s)}",
        f"{name}_count{_labels(labels)} {histogram.count}",
    ]


def _labels(labels: Labels) -> str:
    """Return labels in braces, with backslash, quote and line end escaped."""
    if not labels:
        return ""
    escaped = {name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, value in labels.items()}
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"


def _number(value: float) -> str:
    return repr(int(value)) if isinstance(value, int) else repr(value)


def observe(store: HasMetrics, meter: Any = None, /, **attributes: str) -> None:
    """Register OpenTelemetry instruments that read a store at each collection, until it is closed.

    `meter`: an `opentelemetry.metrics.Meter`; by default that of the global provider. Durations appear as a sum of seconds and
    a count, because an instrument that is read has no buckets.
    """
    with needs_extra("otel"):
        from opentelemetry.metrics import Observation, get_meter
    target = get_meter("brokerstore") if meter is None else meter

    def register(instrument: Instrument) -> None:
        def callback(_options: object) -> Iterator[Any]:
            try:
                metrics = store.metrics()
            except StoreClosed:
                return
            for more, value in instrument.values(metrics):
                if value is not None:
                    yield Observation(value, attributes | more)

        name = "brokerstore." + instrument.name.removesuffix("_total")
        create = target.create_observable_counter if instrument.kind == "counter" else target.create_observable_gauge
        create(name, callbacks=[callback], unit=instrument.unit, description=instrument.help)

    is_rabbit = not isinstance(_checked(store).metrics(), Metrics)
    for instrument in RABBIT_INSTRUMENTS if is_rabbit else (*INSTRUMENTS, *_duration_instruments()):
        register(instrument)


def _checked(store: HasMetrics) -> HasMetrics:
    """Return the store; raise `TypeError` for anything that has no metrics."""
    if not callable(getattr(store, "metrics", None)):
        raise TypeError(f"store: expected a store with metrics, not {type(store).__name__}")
    return store


def _duration_instruments() -> Iterator[Instrument]:
    """Return sum and count of each histogram as counters."""
    for name, description, read in DURATIONS:
        yield Instrument(f"{name}_sum", "counter", description, "s", _part(read, "sum_s"))
        yield Instrument(f"{name}_count", "counter", description, "1", _part(read, "count"))


def _part(read: Callable[[Metrics], Histogram | None], name: str) -> Callable[[Metrics], Iterator[tuple[Labels, float | None]]]:
    def values(metrics: Metrics) -> Iterator[tuple[Labels, float | None]]:
        histogram = read(metrics)
        yield {}, None if histogram is None else getattr(histogram, name)

    return values
