"""The plugin's settings: `KVSCOPE_*` in the environment, or vLLM's `--additional-config`.

KVSCOPE_RECOMMENDATION=recommendation.toml      the policy that `kvscope tune` or `fit` wrote
KVSCOPE_RECORD=folder                           record every request to there
KVSCOPE_CACHE_STUDY=1                           run also what was tuned without a deployment
KVSCOPE_CLOCK=requests                          for replays: requests carry the time

--additional-config '{"kvscope": {"recommendation": "recommendation.toml", "record": "folder"}}'
--additional-config '{"kvscope": {"policy": {"name": "tlru", "params": {"xi_tokens": 2048}}}}'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope.core.errors import InputError, UsageError
from kvscope.core.toml_files import document_in
from kvscope.learning.learners import FittedTable, check_fit, read_fit
from kvscope.learning.policy_file import REMEDY, policy_in
from kvscope.policies.base import LanePolicy
from kvscope.vllm_plugin.eviction_controller import lane_policy

RECOMMENDATION = "KVSCOPE_RECOMMENDATION"
RECORD = "KVSCOPE_RECORD"
CACHE_STUDY = "KVSCOPE_CACHE_STUDY"
CLOCK, BY_REQUESTS = "KVSCOPE_CLOCK", "requests"
_KEYS = ("policy", "recommendation", "record", "cache_study", "clock")
_WHERE = "--additional-config kvscope"


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """The policy that orders free blocks, what was fitted for it, and the recording's folder.

    `trace_clock`: the policy's clock is the time that requests carry, see `EvictionController`.
    """

    policy: LanePolicy | None = None
    fitted: FittedTable | None = None
    record: Path | None = None
    trace_clock: bool = False


def read_settings(additional: object, environment: Mapping[str, str]) -> PluginSettings:
    """Return the settings of the engine's `additional` configuration, else of the environment.

    The recommendation of a cache study, which was not checked for any engine, is only taken where
    that is stated too.
    Raises UsageError or InputError with the place, the value and the remedy, also for a policy that
    no engine can run.
    """
    table: Any = additional.get("kvscope", {}) if isinstance(additional, Mapping) else {}
    if not isinstance(table, Mapping):
        raise UsageError(f"{table!r} is no table", where=_WHERE, remedy="keys: " + ", ".join(_KEYS))
    for key in table:
        if key not in _KEYS:
            raise UsageError("unknown key", where=f"{_WHERE}.{key}", remedy=f"keys: {_KEYS}")
    record = table.get("record") or environment.get(RECORD)
    path = table.get("recommendation") or environment.get(RECOMMENDATION)
    clock = table.get("clock") or environment.get(CLOCK)
    policy = fitted = None
    if "policy" in table:
        given = table["policy"]
        document: Mapping[str, Any] = {
            "policy": {"params": {}, **given} if isinstance(given, Mapping) else given
        }
        where = f"{_WHERE}: policy.name"
        policy = lane_policy(policy_in(document, _WHERE), where)
        check_fit(policy, None, where)
    elif path:
        document = document_in(Path(path), REMEDY)
        if _is_cache_study(document) and not (
            table.get("cache_study") or environment.get(CACHE_STUDY)
        ):
            raise InputError(
                "a cache study, not checked for an engine",
                where=str(path),
                remedy=f"tune for the deployment (--gpu, --model), or set {CACHE_STUDY}=1",
            )
        policy = lane_policy(policy_in(document, str(path)), f"{path}: policy.name")
        fitted = read_fit(document, policy, str(path))
        check_fit(policy, fitted, str(path))
    if clock not in {None, "", BY_REQUESTS}:
        raise UsageError(f"{clock!r}", where=CLOCK, remedy=f"{BY_REQUESTS}, or leave it out")
    return PluginSettings(policy, fitted, Path(record) if record else None, clock == BY_REQUESTS)


def _is_cache_study(document: Mapping[str, Any]) -> bool:
    """Return whether a recommendation was made without a deployment, and so without flags.

    Earlier versions of kvscope gave flags to every recommendation, and named no deployment.
    """
    return "verdict" in document and not (document.get("deployment") or document.get("flags"))
