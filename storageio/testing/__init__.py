"""Disks for tests: one that counts its calls, one that fails the N-th."""

from .wrapped import Call, CountingDisk, FailingDisk, WrappedDisk

__all__ = ["Call", "CountingDisk", "FailingDisk", "WrappedDisk"]
