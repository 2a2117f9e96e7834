"""A temporary folder of symbolic links, for libraries that write their own files beside those that they read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import DiskError


@contextmanager
def linked_folder(folder: str) -> Iterator[str]:
    """Yield a temporary folder with a link to each file of `folder`; it is deleted afterwards, and `folder` stays as it is."""
    with tempfile.TemporaryDirectory(prefix="brokerstore-") as made:
        try:
            for name in os.listdir(folder):
                os.symlink(os.path.join(os.path.abspath(folder), name), os.path.join(made, name))
        except OSError as error:
            raise DiskError("link", folder, error.errno or 0, str(error.strerror)) from error
        yield made
