"""Checks of an engine's state after each step: on when the environment has BROKERSTORE_CHECK=1, as in the tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ParamSpec

Arguments = ParamSpec("Arguments")
IS_CHECKED = os.environ.get("BROKERSTORE_CHECK") == "1"


def check_invariants(check: Callable[Arguments, object], *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
    """Call `check`, which asserts the invariants, if checks are on."""
    if IS_CHECKED:
        check(*args, **kwargs)
