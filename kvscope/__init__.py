"""kvscope: replay LLM traces on simulated engines, and recommend prefix-cache settings.

The Python API is in kvscope.api; its names are imported when they are first used, so that
`import kvscope` is quick and an engine that loads the plugin imports nothing else. For type
checkers `__init__.pyi` has them, which `python -m docs.generate` writes.
"""

from __future__ import annotations

from typing import Any

from kvscope.usecases import USE_CASES

__version__ = "0.2.0"
__all__ = [  # noqa: PLE0604  (use cases declare theirs)
    "InputError",
    "KvscopeError",
    "OpenTrace",
    "TuneResult",
    "UsageError",
    "__version__",
    "hash_logs",
    "open_trace",
    "tune",
    "tune_fleet",
    "tune_tiers",
    *(name for entry in USE_CASES.values() for name in (entry.function, entry.returns)),
]


def __getattr__(name: str) -> Any:
    """Return the function or class `name` of kvscope.api, imported at its first use."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("kvscope.api"), name)
    raise AttributeError(f"module 'kvscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the API."""
    return sorted(__all__)
