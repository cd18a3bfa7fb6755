"""What the options of a use case ask for; mistakes are refused before any trace is read.

UsageError names the option that is wrong. This package and what it imports load no kernel.
"""

from kvscope.app.requests.common import (
    BASELINE,
    COMMON_GPUS,
    WINDOWS,
    Capacities,
    FleetRequest,
    SimulateRequest,
    TuneRequest,
    above_zero,
    hit_definition,
    kv_model,
    latency_profile,
)

__all__ = [
    "BASELINE",
    "COMMON_GPUS",
    "WINDOWS",
    "Capacities",
    "FleetRequest",
    "SimulateRequest",
    "TuneRequest",
    "above_zero",
    "hit_definition",
    "kv_model",
    "latency_profile",
]
