"""The earlier name of `sparkstore.sink.commit`, kept for programs that call `finish_commits`."""

from .sink.commit import Committed, finish_commits

__all__ = ["Committed", "finish_commits"]
