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
    SimulateRequest,
    simulate_request,
)
from kvscope.app.requests.tuning import (
    COMMON_GPUS,
    WINDOWS,
    FleetTuningRequest,
    TierTuningRequest,
    TuneRequest,
    fleet_tuning_request,
    machine_requests,
    tier_tuning_request,
    tune_request,
)

__all__ = [
    "BASELINE",
    "COMMON_GPUS",
    "WINDOWS",
    "Capacities",
    "FleetRequest",
    "FleetTuningRequest",
    "SimulateRequest",
    "TierTuningRequest",
    "TuneRequest",
    "above_zero",
    "fleet_request",
    "fleet_tuning_request",
    "hit_definition",
    "kv_model",
    "latency_profile",
    "machine_requests",
    "simulate_request",
    "tier_tuning_request",
    "tune_request",
]
