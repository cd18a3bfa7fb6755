"""The `engine` capacity model: vLLM's block pool and scheduler, request by request.

`state` holds blocks and requests, `pool` allocates, frees and evicts blocks, `groups` assigns
blocks to requests and hashes them, `admission` looks up and admits requests, `scheduler` plans the
engine's steps, `replay` runs a trace. `offload` is the scheduler with a CPU tier below the pool:
`offload_blocks` selects the chunks that requests load and store, `chunks` holds and evicts them.
"""

from kvscope.vllm_sim.replay import (
    EngineReplay,
    hits_without_eviction,
    replay_engine,
    replay_in_flight,
)
from kvscope.vllm_sim.settings import EngineSettings, StepCost
from kvscope.vllm_sim.state import fits

__all__ = [
    "EngineReplay",
    "EngineSettings",
    "StepCost",
    "fits",
    "hits_without_eviction",
    "replay_engine",
    "replay_in_flight",
]
