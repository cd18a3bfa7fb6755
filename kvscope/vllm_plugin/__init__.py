"""kvscope inside vLLM: eviction orders and recordings, light to import and safe to fail.

    vllm serve MODEL --scheduler-cls kvscope.vllm_plugin.KvscopeScheduler

with KVSCOPE_RECOMMENDATION=recommendation.toml in the environment; see `settings` for the rest. The
entry point `vllm.general_plugins` does the same without the flag, where that variable is set.

All of it runs in the engine's own process, so it imports policies, learners and what lies below
them, and nothing else of kvscope. `adapter` alone imports vLLM.
"""

from __future__ import annotations

import os
from typing import Any

_SCHEDULERS = ("KvscopeScheduler", "KvscopeAsyncScheduler")


def __getattr__(name: str) -> Any:
    """Return a scheduler class, which exists only where vLLM does.

    Raises EngineError for a scheduler in a vLLM of an unknown version.
    """
    if name not in _SCHEDULERS:
        raise AttributeError(name)
    from kvscope.vllm_plugin import adapter

    adapter.check_version()
    return getattr(adapter, name)


def register() -> None:
    """Observe this process's engines if KVSCOPE_RECOMMENDATION or _RECORD is set; never raise."""
    from kvscope.core.errors import KvscopeError
    from kvscope.learning.observer import log
    from kvscope.vllm_plugin.settings import RECOMMENDATION, RECORD

    if not any(os.environ.get(name) for name in (RECOMMENDATION, RECORD)):
        return
    try:
        from kvscope.vllm_plugin import adapter

        adapter.register()
    except KvscopeError as error:
        log.warning("%s; vLLM keeps its own order", error)
    except Exception:  # noqa: BLE001  (whatever an unknown vLLM lacks)
        log.exception("kvscope's plugin does not fit this vLLM, which keeps its own order")
