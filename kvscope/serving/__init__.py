"""Inference servers from the outside: how one is started, asked and stopped.

Nothing here knows traces, policies or latency profiles. `guard` runs in a process of its own and
imports nothing else of kvscope.
"""
