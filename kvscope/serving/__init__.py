"""Inference servers from the outside: how one is started, asked and stopped.

Nothing here knows traces, policies or latency profiles. `forced_outputs` and `guard` run in other
processes and import nothing else of kvscope.
"""
