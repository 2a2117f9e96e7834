"""rabbitstore alone: each workload once as a test, measured with `--benchmark-enable`; rates are in extra_info.

`bench/peers/rabbitmq_modules.py` measures the ratios to RabbitMQ's own modules, in turn on one machine.
"""

import pytest

from rabbitstore import RabbitStore

from . import rabbitstore_workloads as workloads

COUNT = 10_000


def _run(benchmark, work, *arguments, **options):
    rates = benchmark.pedantic(work, args=arguments, kwargs=options, rounds=3)
    benchmark.extra_info.update({name: round(rate) for name, rate in rates.items()})
    assert all(rate > 0 for rate in rates.values())


@pytest.mark.parametrize("size", [100, 1024, 8192])
def test_store(benchmark, tmp_path, size):
    """Message store: synced writes, reads, removes."""
    _run(benchmark, workloads.store, tmp_path / "b", COUNT, size)


@pytest.mark.parametrize("embedded", [True, False])
def test_index(benchmark, tmp_path, embedded):
    """Queue index: synced publishes, reads, acknowledgements."""
    _run(benchmark, workloads.index, tmp_path / "b", COUNT, 100, embedded=embedded)


@pytest.mark.parametrize("mode", ["default", "lazy"])
@pytest.mark.parametrize("size", [100, 8192])
def test_variable_queue(benchmark, tmp_path, mode, size):
    """Variable queue: publish until synced, fetch and acknowledge."""
    _run(benchmark, workloads.variable_queue, tmp_path / "b", COUNT, size, mode=mode)


def test_recovery_after_a_kill(benchmark, tmp_path):
    """Opening a store that was not stopped."""
    path = str(tmp_path / "vhost")
    store = RabbitStore.open(path)
    store.declare_queue("q")
    for _ in range(COUNT):
        store.publish("q", b"x" * 8192)
    store.sync()
    store.abandon()

    def reopen():
        opened = RabbitStore.open(path)
        assert len(opened.queue("q")) == COUNT
        opened.abandon()

    benchmark.pedantic(reopen, rounds=3)
