"""Parameters that CI leaves out: `make test-long` runs them."""

from __future__ import annotations

from typing import Any

import pytest


def long(*values: object) -> Any:
    """Return parameters of `pytest.mark.parametrize` whose tests are marked `long`."""
    return pytest.param(*values, marks=pytest.mark.long)
