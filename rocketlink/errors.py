"""Errors of connections to brokers and clients."""

from __future__ import annotations

from storageio import StoreError


class WrongFrame(StoreError):
    """Bytes from the other side that are no frame of the protocol, or one that is too large."""


class OtherProtocol(WrongFrame):
    """The first bytes of another protocol, which the error names."""


class RemoteError(StoreError):
    """The other side answered a request with an error code."""

    def __init__(self, request: int, code: int, remark: str | None) -> None:
        """Keep the codes of the request and of the answer."""
        super().__init__(f"request {request} was answered with code {code}: {remark or 'no remark'}")
        self.request = request
        self.code = code
        self.remark = remark


class MasterDiffers(StoreError):
    """The master's log is not the one that was replicated: it was truncated or replaced, or its files have another size."""

    def __init__(self, physical_offset: int, expected: str, found: str) -> None:
        """Name the offset in the log, and what this side and the master have there."""
        super().__init__(
            f"the master's log differs from the replica at physical offset {physical_offset}: "
            f"expected {expected}, found {found}. "
            "The master was truncated or replaced; nothing was changed here. Replicate into a new folder to start again."
        )
        self.physical_offset = physical_offset
        self.add_note("run: brokerstore replicate HOST:PORT NEW_DIR --from-start")
