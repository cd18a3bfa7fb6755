"""What vLLM is told of kvscope: two scheduler classes, and an entry point.

vllm serve MODEL --scheduler-cls kvscope.engine.vllm_plugin.KvscopeScheduler

with KVSCOPE_RECOMMENDATION=recommendation.toml in the environment; see `settings` for the rest. The
entry point `vllm.general_plugins` does the same without the flag, where that variable is set.
"""

from __future__ import annotations

import os
from typing import Any

from kvscope.engine.observer import log
from kvscope.engine.settings import RECOMMENDATION, RECORD
from kvscope.errors import KvscopeError

_SCHEDULERS = ("KvscopeScheduler", "KvscopeAsyncScheduler")


def __getattr__(name: str) -> Any:
    """The scheduler classes, which exist only where vLLM does; EngineError for unknown versions."""
    if name not in _SCHEDULERS:
        raise AttributeError(name)
    from kvscope.engine import vllm_adapter

    vllm_adapter.check_version()
    return getattr(vllm_adapter, name)


def register() -> None:
    """Watch every engine of this process, if the environment asks for it. Never raises."""
    if not any(os.environ.get(name) for name in (RECOMMENDATION, RECORD)):
        return
    try:
        from kvscope.engine import vllm_adapter

        vllm_adapter.register()
    except KvscopeError as error:
        log.warning("%s; vLLM keeps its own order", error)
    except Exception:  # noqa: BLE001  (whatever an unknown vLLM lacks)
        log.exception("kvscope's plugin does not fit this vLLM, which keeps its own order")
