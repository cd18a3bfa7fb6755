"""What the options of a use case ask for; mistakes are refused before any trace is read.

UsageError names the option that is wrong. This package and what it imports load no kernel.
"""

from kvscope.app.requests.common import (
    BASELINE,
    Capacities,
    above_zero,
    hit_definition,
    kv_model,
    latency_profile,
)
from kvscope.app.requests.fleets import FleetRequest, fleet_request
from kvscope.app.requests.replays import (
    AnalyzeRequest,
    ExplainRequest,
    RetentionRequest,
    SimulateRequest,
    analyze_request,
    explain_request,
    retention_request,
    simulate_request,
)
from kvscope.app.requests.tuning import (
    COMMON_GPUS,
    WINDOWS,
    TuneRequest,
    machine_requests,
    tune_request,
)

__all__ = [
    "BASELINE",
    "COMMON_GPUS",
    "WINDOWS",
    "AnalyzeRequest",
    "Capacities",
    "ExplainRequest",
    "FleetRequest",
    "RetentionRequest",
    "SimulateRequest",
    "TuneRequest",
    "above_zero",
    "analyze_request",
    "explain_request",
    "fleet_request",
    "hit_definition",
    "kv_model",
    "latency_profile",
    "machine_requests",
    "retention_request",
    "simulate_request",
    "tune_request",
]
