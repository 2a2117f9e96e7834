"""Public names that a package imports on first use, so that importing the package is fast."""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # importing `typing` would take ten times as long as `import brokerstore`
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


def lazy_names(
    package: dict[str, Any], modules: dict[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package.

    `package` is its `globals()`.  `modules` has the names of each module, whose own name may be relative (".store").  A type
    checker does not see these names: the package imports them `if TYPE_CHECKING`, and calls this function otherwise.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        found = package[name] = getattr(importlib.import_module(module_of[name], package["__name__"]), name)
        return found

    return find, lambda: sorted(package["__all__"])
