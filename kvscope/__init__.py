"""kvscope: what a prefix cache gives, what it could give, and what to set for it.

The Python API is in kvscope.api; its names are imported when they are first used, so that
`import kvscope` is quick and an engine that loads the plugin imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvscope.api import (
        AnalysisResult,
        DiffResult,
        ExplanationResult,
        FitResult,
        FleetResult,
        InputError,
        KvscopeError,
        OpenTrace,
        RetentionResult,
        SimulationResult,
        TuneResult,
        UsageError,
        advise_retention,
        analyze,
        diff,
        explain,
        fit,
        hash_logs,
        open_trace,
        simulate,
        simulate_fleet,
        tune,
        tune_fleet,
        tune_tiers,
    )

__version__ = "0.1.0"
__all__ = [
    "AnalysisResult",
    "DiffResult",
    "ExplanationResult",
    "FitResult",
    "FleetResult",
    "InputError",
    "KvscopeError",
    "OpenTrace",
    "RetentionResult",
    "SimulationResult",
    "TuneResult",
    "UsageError",
    "__version__",
    "advise_retention",
    "analyze",
    "diff",
    "explain",
    "fit",
    "hash_logs",
    "open_trace",
    "simulate",
    "simulate_fleet",
    "tune",
    "tune_fleet",
    "tune_tiers",
]


def __getattr__(name: str) -> Any:
    """Return a name of the API."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("kvscope.api"), name)
    raise AttributeError(f"module 'kvscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the API."""
    return __all__
