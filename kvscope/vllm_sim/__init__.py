"""The `engine` capacity model: vLLM's block pool and scheduler, request by request.

`pool` holds the blocks and the order in which they are given up, `requests` what each request has
and wants of them, `scheduler` the steps of the engine; `replay` runs a trace through all of it.
"""

from kvscope.vllm_sim.replay import EngineReplay, replay_engine
from kvscope.vllm_sim.settings import EngineSettings, StepCost

__all__ = ["EngineReplay", "EngineSettings", "StepCost", "replay_engine"]
