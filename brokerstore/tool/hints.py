"""What to run next, for each kind of error and each answer that is not clean: one line on stderr."""

from __future__ import annotations

import os

from storageio import (
    REAL_DISK,
    DiskError,
    DiskFull,
    InvalidMessage,
    MissingExtra,
    PutRejected,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreReadOnly,
    StoreRewound,
    UnknownStore,
    UnsupportedFormat,
    UnsupportedPlatform,
    misplaced,
)

from .codes import PROBLEM, REPAIRED_DROPPED, REPAIRED_KEPT
from .escapes import quote


class NoSuchMessage(StoreError):
    """A message that a healthy folder does not hold; the exit code is 1."""

    def __init__(self, text: str, next_step: str) -> None:
        """`next_step` is the line that says what to run."""
        super().__init__(text)
        self.add_note(next_step)


QUIET_COMMANDS = (
    "diff",
    "import",
    "bench",
    "doctor",
)  # their answers need no next step: there is nothing to repair in one folder


def after_error(error: StoreError, command: str, folder: str | None) -> str:
    """Return the line for a command that ended with an error, or ""; a note that the error carries takes precedence."""
    notes = getattr(error, "__notes__", ())
    if notes:
        return str(notes[0])
    directory = folder if folder is not None else "DIR"
    return next((line(error, command, directory) for kind, line in _NEXT if isinstance(error, kind)), "")


def after_answer(code: int, command: str, folder: str, choice: str = "") -> str:
    """Return the line for a command that ended with an exit code, or ""; `choice` is the option given to `recover`."""
    directory = quote(folder)
    if code in (REPAIRED_DROPPED, REPAIRED_KEPT):
        return f"run: brokerstore verify {directory}  (checks the result)"
    if code != PROBLEM or command in QUIET_COMMANDS:
        return ""
    if command == "verify":
        return f"run: brokerstore recover {directory}  (shows the repair plan; --apply executes it)"
    if command == "recover" and choice:
        return f"run: brokerstore recover {directory} {choice} --apply  (executes the plan; keeps a copy of what it cuts)"
    if command == "recover":
        return f"run: brokerstore recover {directory} --apply  (executes the plan; keeps a copy of what it cuts)"
    return f"run: brokerstore verify {directory}  (reports every problem)"


def _unknown(error: StoreError, command: str, directory: str) -> str:
    if "several virtual hosts" in str(error):
        return f"run: brokerstore {command} {quote(directory)} --vhost NAME"
    if "only read here" in str(error):
        return f"run: brokerstore import {quote(directory)} --to STORE_DIR  (copies its messages into a RocketMQ store)"
    if "already" in str(error):
        return "choose a folder that does not exist, or remove this one"
    return f"run: find {quote(directory)} -name commitlog -o -name msg_store_persistent  (give the folder above either)"


def _locked(_error: StoreError, _command: str, directory: str) -> str:
    return f"run: brokerstore info {quote(directory)}  (reads; to write, stop that process, or share the store)"


def _full(error: StoreError, _command: str, directory: str) -> str:
    return f"run: df -h {quote(_folder_there(_named(error, directory)))}  (free some space, then run the command again)"


def _refused(error: StoreError, _command: str, directory: str) -> str:
    if _is_strange_sidecar(_named(error, directory), directory):
        return f"run: brokerstore recover {quote(directory)}  (with --apply, moves aside what blocks a file of brokerstore)"
    if getattr(error, "operation", "") == "listen":
        return "run: ss -ltnp  (shows which program has the port; choose another one)"
    file = quote(_there(_named(error, directory)))
    return f"run: ls -ld {file}; dmesg | tail  (permissions, or a failing disk: copy the folder first)"


def _is_strange_sidecar(file: str, directory: str) -> bool:
    """Return whether a symbolic link or folder is in place of a file of this library, or of its next version."""
    from messagestore.sidecar import OWN_FILES
    from rabbitstore.format.layout import SIDECAR_FILES as RABBIT_FILES

    own = os.path.join(directory, "brokerstore")
    if os.path.dirname(file) != own:
        return False
    strange = misplaced.find(REAL_DISK, own, OWN_FILES | RABBIT_FILES)
    return bool({one.path for one in strange} & {file, file.removesuffix(".new")})


def _named(error: StoreError, directory: str) -> str:
    """Return the file that an error names."""
    file = getattr(error, "file", "")
    return file if file and len(file) < 4096 else directory[:4096]


def _is_outside(file: str, directory: str) -> bool:
    """Return whether a file is no part of the store, such as a broker.conf; a log elsewhere has files named by numbers."""
    above = os.path.join(os.path.abspath(directory), "")
    return not os.path.abspath(file).startswith(above) and not os.path.basename(file).isdigit()


def _there(file: str) -> str:
    """Return the file, or the nearest existing folder above it."""
    return file if os.path.lexists(file) else _folder_there(file)


def _folder_there(file: str) -> str:
    """Return the nearest existing folder above a file: a full disk may have kept the others from being created."""
    folder = os.path.dirname(os.path.abspath(file))
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _usage(_error: StoreError, command: str, _location: str) -> str:
    return f"run: brokerstore {command} --help".replace("  ", " ")


def _corrupt(error: StoreError, _command: str, directory: str) -> str:
    file = _named(error, directory)
    if os.path.isfile(file) and _is_outside(file, directory):
        return f"run: head {quote(file)}  (not a file of the store: correct it, or run without it)"
    return f"run: brokerstore verify {quote(directory)}  (reports every problem; then run recover)"


_NEXT = (
    (MissingExtra, lambda *_: "run: brokerstore doctor  (shows which packages are installed)"),
    (
        UnsupportedFormat,
        lambda _error, _command, directory: (
            f"run: brokerstore info {quote(directory)}  (shows what the folder holds and what of it is readable)"
        ),
    ),
    (UnknownStore, _unknown),
    (StoreLocked, _locked),
    (DiskFull, _full),
    (DiskError, _refused),
    (InvalidMessage, _usage),
    (PutRejected, _usage),
    (
        UnsupportedPlatform,
        lambda _error, _command, directory: f"run: brokerstore info {quote(directory)}  (reading works; write on Linux)",
    ),
    (
        StoreRewound,
        lambda _error, command, directory: f"run: brokerstore {command} {quote(directory)}  (the log was truncated)",
    ),
    (StoreReadOnly, _refused),
    (StoreCorrupt, _corrupt),
    (StoreError, _corrupt),
)
