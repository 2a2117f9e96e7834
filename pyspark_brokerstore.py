"""Lets Spark find the format "brokerstore" by itself: it imports every `pyspark_*` module at the first lookup of a format."""

from sparkstore.source.data_source import BrokerStoreSource as DefaultSource

__all__ = ["DefaultSource"]
