"""Parameters that CI leaves out: `make test-long` runs them."""

from __future__ import annotations

from typing import Any

import pytest


def long(value: object) -> Any:
    """Return a parameter of `pytest.mark.parametrize` whose tests are marked `long`."""
    return pytest.param(value, marks=pytest.mark.long)
