"""kvscope: what a prefix cache gives, what it could give, and what to set for it."""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__"]
