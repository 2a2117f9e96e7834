"""The error for a store with an unknown format or version."""

from __future__ import annotations

import brokerstore
from brokerstore.tool.codes import NO_STORE, exit_code
from storageio import UnknownStore, UnsupportedFormat


def test_the_error_names_what_was_found_where_and_what_is_supported() -> None:
    """Text and attributes have file, byte, found and supported values; the tool exits with 3, as for any unknown store."""
    error = UnsupportedFormat("index version", file="queues/Q/0.qi", offset=4, found=3, supported="1, 2")
    assert str(error) == "queues/Q/0.qi at byte 4: unsupported index version 3 (supported: 1, 2); nothing was changed"
    assert (error.file, error.offset, error.found, error.supported) == ("queues/Q/0.qi", 4, 3, "1, 2")
    assert isinstance(error, UnknownStore)
    assert exit_code(error) == NO_STORE
    assert brokerstore.UnsupportedFormat is UnsupportedFormat
