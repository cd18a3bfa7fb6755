"""kvscope inside an inference engine: eviction orders and recordings, light and never in the way.

Everything here runs in the engine's own process, so it imports the policies and what lies below
them and nothing else of kvscope. What knows vLLM is `vllm_adapter` alone.
"""
