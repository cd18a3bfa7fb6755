"""The plugin's settings: `KVSCOPE_*` in the environment, or vLLM's `--additional-config`.

KVSCOPE_RECOMMENDATION=recommendation.toml      the policy that `kvscope tune` or `fit` wrote
KVSCOPE_RECORD=folder                           record every request in this folder
KVSCOPE_CACHE_STUDY=1                           allow a policy tuned without a deployment
KVSCOPE_CLOCK=requests                          for replays: requests state the time

--additional-config '{"kvscope": {"recommendation": "recommendation.toml", "record": "folder"}}'
--additional-config '{"kvscope": {"policy": {"name": "tlru", "params": {"xi_tokens": 2048}}}}'
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from kvscope.core.errors import InputError
from kvscope.core.toml_files import document_in, table_as
from kvscope.learning.learners import FittedTable, read_fit
from kvscope.learning.policy_file import REMEDY, policy_in
from kvscope.policies.base import LanePolicy
from kvscope.vllm_plugin.eviction_controller import lane_policy

RECOMMENDATION = "KVSCOPE_RECOMMENDATION"
RECORD = "KVSCOPE_RECORD"
CACHE_STUDY = "KVSCOPE_CACHE_STUDY"
CLOCK, BY_REQUESTS = "KVSCOPE_CLOCK", "requests"
MOST_BYTES = 64 << 20
_WHERE = "--additional-config kvscope"
_KEYS = ("policy", "recommendation", "record", "cache_study", "clock")
_USAGE = f"keys: {', '.join(_KEYS)}"


class SettingsTable(msgspec.Struct, forbid_unknown_fields=True):
    """The table `kvscope` of `--additional-config`; empty keys fall back to the environment."""

    policy: Any = msgspec.UNSET
    recommendation: str = ""
    record: str = ""
    cache_study: bool = False
    clock: Literal["", "requests"] = ""


class PluginSettings(Struct, frozen=True):
    """The policy that orders free blocks, its `fitted` table, and the folder to `record` to.

    None for each that is not set. `trace_clock`: the policy's clock is the time stated in requests,
    see `EvictionController`.
    """

    policy: LanePolicy | None = None
    fitted: FittedTable | None = None
    record: Path | None = None
    trace_clock: bool = False


def read_settings(additional: object, environment: Mapping[str, str]) -> PluginSettings:
    """Return the settings of the engine's `additional` configuration, else of the environment.

    A cache study, a recommendation tuned without a deployment and checked for no engine, needs the
    setting `cache_study`, too. Raises UsageError or InputError with the place, the key, the value
    and the remedy, also for a policy that no engine can run.
    """
    given = additional.get("kvscope", {}) if isinstance(additional, Mapping) else {}
    table = table_as(given, SettingsTable, _WHERE, _USAGE)
    record = table.record or environment.get(RECORD)
    clock = table.clock or environment.get(CLOCK)
    policy, fitted = _policy(table, environment)
    if clock not in {None, "", BY_REQUESTS}:
        raise InputError(f"{clock!r}", where=CLOCK, remedy=f"{BY_REQUESTS}, or leave it out")
    folder = Path(record) if record else None
    return PluginSettings(policy, fitted, folder, clock == BY_REQUESTS)


def _policy(
    table: SettingsTable, environment: Mapping[str, str]
) -> tuple[LanePolicy | None, FittedTable | None]:
    """Return the policy to run and its fitted table, each None if not configured."""
    given = table.policy
    if given is not msgspec.UNSET:
        document = {"policy": {"params": {}, **given} if isinstance(given, dict) else given}
        return lane_policy(policy_in(document, _WHERE), f"{_WHERE}: policy.name"), None
    path = table.recommendation or environment.get(RECOMMENDATION)
    if not path:
        return None, None
    document = document_in(_readable(path), REMEDY)
    if _is_cache_study(document) and not (table.cache_study or environment.get(CACHE_STUDY)):
        raise InputError(
            "a cache study, not checked for an engine",
            where=path,
            remedy=f"tune for the deployment (--gpu, --model), or set {CACHE_STUDY}=1",
        )
    policy = lane_policy(policy_in(document, path), f"{path}: policy.name")
    return policy, read_fit(document, policy, path)


def _readable(text: str) -> Path:
    """Return the path `text`. Raises InputError for a pipe, a device or too large a file."""
    path = Path(text)
    try:
        if path.exists() and not path.is_file():
            raise InputError("not a file", where=text, remedy=REMEDY)
        if path.exists() and path.stat().st_size > MOST_BYTES:
            raise InputError(f"above {MOST_BYTES >> 20} MiB", where=text, remedy=REMEDY)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise InputError(str(error), where=text, remedy="name another file") from error
    return path


def _is_cache_study(document: Mapping[str, Any]) -> bool:
    """Return whether a document is a recommendation (has a `verdict`) made for no deployment.

    Those of earlier versions of kvscope, with flags but no deployment, count as made for one.
    """
    return "verdict" in document and not (document.get("deployment") or document.get("flags"))
