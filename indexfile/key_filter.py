"""One file of key filters, as the list of index files and the folder of filters know it."""

from __future__ import annotations

from typing import NamedTuple

from ._filter_cy import FilterBuffer


class FilterColumn(NamedTuple):
    """A full index file as a filter knows it."""

    name: int
    header: bytes


class KeyFilter(NamedTuple):
    """One file of filters; bit n is for column n, from the oldest index file to the newest."""

    path: str
    columns: list[FilterColumn]
    buffer: FilterBuffer
