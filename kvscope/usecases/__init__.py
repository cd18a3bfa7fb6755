"""The use cases of kvscope, one file each: options, computation, figures and sections.

A new use case is a file that declares a `USE_CASE`, and a line here. The command line, the
Python API and the JSON schemas are made of the declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Listing(NamedTuple):
    """A use case's summary in `kvscope --help`, its Python function and the class this returns."""

    summary: str
    function: str
    returns: str


USE_CASES: Mapping[str, Listing] = {
    "analyze": Listing(
        "Characterize a trace: reuse, ideal hits, cache sizes.", "analyze", "AnalysisResult"
    ),
    "explain": Listing(
        "Explain why input tokens missed the cache.", "explain", "ExplanationResult"
    ),
    "fit": Listing("Fit models of reuse and of conversations.", "fit", "FitResult"),
    "simulate": Listing("Replay a trace under eviction policies.", "simulate", "SimulationResult"),
    "retention": Listing(
        "Find how long blocks should live, and prices.", "advise_retention", "RetentionResult"
    ),
    "tune": Listing("Recommend policy, parameters and capacity for an SLO.", "tune", "TuneResult"),
    "fleet": Listing(
        "Find the fewest replicas and the router for an SLO.", "simulate_fleet", "FleetResult"
    ),
    "diff": Listing("Compare two traces, runs or recommendations.", "diff", "DiffResult"),
    "calibrate": Listing(
        "Measure TTFT on an engine; write a profile.", "calibrate_engine", "CalibrationResult"
    ),
    "validate": Listing(
        "Replay the trace on a real engine; compare.", "validate_on_engine", "ValidationResult"
    ),
}
"""By the name of the command, which is also that of the module."""
