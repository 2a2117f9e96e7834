"""Disks for tests: one counts its calls, one fails the N-th, one in memory drops unsynced data at a crash."""

from .forgetting import ForgettingDisk, ShortWrite
from .forgetting_images import Image
from .wrapped import Call, CountingDisk, FailingDisk, WrappedDisk

__all__ = ["Call", "CountingDisk", "FailingDisk", "ForgettingDisk", "Image", "ShortWrite", "WrappedDisk"]
