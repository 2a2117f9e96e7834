"""Disks for tests: one that counts its calls, one that fails the N-th, one in memory that forgets at a crash."""

from .forgetting import ForgettingDisk, ShortWrite
from .forgetting_images import Image
from .wrapped import Call, CountingDisk, FailingDisk, WrappedDisk

__all__ = ["Call", "CountingDisk", "FailingDisk", "ForgettingDisk", "Image", "ShortWrite", "WrappedDisk"]
