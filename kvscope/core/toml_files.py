"""TOML files, as people edit them: read whole, or refused with the file and the remedy."""

from __future__ import annotations

import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

from kvscope.core.errors import InputError


def document_in(path: Path, remedy: str) -> dict[str, Any]:
    """The TOML file at `path`, its numbers exact; InputError with the file and the remedy."""
    try:
        # Decimal, so that milliseconds become the very seconds that were written.
        return tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except OSError as error:
        raise InputError(
            error.strerror or str(error), where=str(path), remedy="name another file"
        ) from error
    except (ValueError, ArithmeticError, RecursionError) as error:  # numbers and nesting, too
        raise InputError(f"not a TOML file: {error}", where=str(path), remedy=remedy) from error
