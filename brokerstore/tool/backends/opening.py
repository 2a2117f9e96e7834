"""The backend for a folder, and the options that it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import click

from storageio import UnknownStore
from storebytes.folder_kind import FolderKind

if TYPE_CHECKING:
    from ..target import Target
    from .rabbitmq import RabbitmqBackend
    from .rocketmq import RocketmqBackend

Backend: TypeAlias = "RocketmqBackend | RabbitmqBackend"


def open_backend(target: Target) -> Backend:
    """Return the backend for a folder."""
    if target.kind is FolderKind.RABBITMQ:
        from .rabbitmq import RabbitmqBackend

        return RabbitmqBackend(target)
    from .rocketmq import RocketmqBackend

    return RocketmqBackend(target)


def refuse_options(backend: Backend, context: click.Context, command: str, refused: Sequence[str] | bool) -> None:
    """Raise `click.UsageError` for a command of the other kind of folder, or for the options of those `refused` that are given.

    True refuses the whole command.
    """
    if context.command.hidden and backend.target.kind is FolderKind.RABBITMQ:  # the names of mqadmin
        raise UnknownStore(f"{backend.target.path}: {backend.title}; {command} needs {backend.other}")
    names = () if isinstance(refused, bool) else refused
    used = [_shown(param, context.params[param.name]) for param in context.command.params if _is_used(param, context, names)]
    if used or refused is True:
        words = " ".join((command, *used))
        raise click.UsageError(f"{words} works only on {backend.other}; {backend.target.path} is {backend.title}")


def _is_used(param: click.Parameter, context: click.Context, refused: Sequence[str]) -> bool:
    value = context.params.get(param.name or "")
    return param.name in refused and value is not None and value is not False and value not in ((), param.default)


def _shown(param: click.Parameter, value: object) -> str:
    """Return an option as it is typed; with its value where that is one of several words."""
    words = [param.opts[-1]] if isinstance(param, click.Option) else []
    return " ".join([*words, *([str(value)] if isinstance(param.type, click.Choice) else [])])
