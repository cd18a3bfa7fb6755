"""The plugin's settings: `KVSCOPE_*` in the environment, or vLLM's `--additional-config`.

KVSCOPE_RECOMMENDATION=recommendation.toml      the policy that `kvscope tune` or `fit` wrote
KVSCOPE_RECORD=folder                           record every request to there
KVSCOPE_CACHE_STUDY=1                           run also what was tuned without a deployment
KVSCOPE_CLOCK=requests                          for replays: requests carry the time

--additional-config '{"kvscope": {"recommendation": "recommendation.toml", "record": "folder"}}'
--additional-config '{"kvscope": {"policy": {"name": "tlru", "params": {"xi_tokens": 2048}}}}'

The policy of vLLM's CPU tier (see `cpu_tier`) has the parameters of that policy, or those of a key
`cpu_tier` of the same form as `policy`, or else of the recommendation's `[tier.policy]`.
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
from kvscope.policies.base import GUARD, LanePolicy
from kvscope.policies.tlru import NOT_OF_CHUNKS, XI_TOKENS
from kvscope.vllm_plugin.policy_controller import lane_policy

RECOMMENDATION = "KVSCOPE_RECOMMENDATION"
RECORD = "KVSCOPE_RECORD"
CACHE_STUDY = "KVSCOPE_CACHE_STUDY"
CLOCK, BY_REQUESTS = "KVSCOPE_CLOCK", "requests"
MOST_BYTES = 64 << 20
_WHERE = "--additional-config kvscope"
_KEYS = ("policy", "recommendation", "record", "cache_study", "clock", "cpu_tier")
_USAGE = f"keys: {', '.join(_KEYS)}"


class SettingsTable(msgspec.Struct, forbid_unknown_fields=True):
    """The table `kvscope` of `--additional-config`; what is empty is left to the environment."""

    policy: Any = msgspec.UNSET
    cpu_tier: Any = msgspec.UNSET
    recommendation: str = ""
    record: str = ""
    cache_study: bool = False
    clock: Literal["", "requests"] = ""


class PluginSettings(Struct, frozen=True):
    """The policy that orders free blocks, what was fitted for it, and the recording's folder.

    `cpu_tier` is a policy for vLLM's CPU tier alone. `trace_clock`: the policy's clock is the time
    that requests carry, see `PolicyController`.
    """

    policy: LanePolicy | None = None
    fitted: FittedTable | None = None
    record: Path | None = None
    trace_clock: bool = False
    cpu_tier: LanePolicy | None = None

    def for_chunks(self, kind: type[LanePolicy]) -> tuple[LanePolicy, FittedTable | None] | None:
        """Return the policy of this `kind` for the chunks of a CPU tier, and its fit.

        It has the parameters that the settings name, of whatever policy, and a guard unless
        `cpu_tier` is of that kind and says otherwise. None where they name no xi.
        """
        named = self.cpu_tier or self.policy
        if named is None or XI_TOKENS.name not in named.values:
            return None
        taken = {parameter.name for parameter in kind.parameters if parameter not in NOT_OF_CHUNKS}
        values = {name: value for name, value in named.values.items() if name in taken}
        alike = isinstance(named, kind)
        if GUARD in kind.parameters and not (alike and named is self.cpu_tier):
            values[GUARD.name] = 1.0
        leaves = named.evicts if alike else None
        return kind(values, leaves), self.fitted if alike and named is self.policy else None


def read_settings(additional: object, environment: Mapping[str, str]) -> PluginSettings:
    """Return the settings of the engine's `additional` configuration, else of the environment.

    The recommendation of a cache study, which was not checked for any engine, is only taken where
    that is stated too.
    Raises UsageError or InputError with the place, the key, the value and the remedy, also for a
    policy that no engine can run.
    """
    given = additional.get("kvscope", {}) if isinstance(additional, Mapping) else {}
    table = table_as(given, SettingsTable, _WHERE, _USAGE)
    record = table.record or environment.get(RECORD)
    clock = table.clock or environment.get(CLOCK)
    policy, fitted, chunks = _policies(table, environment)
    if clock not in {None, "", BY_REQUESTS}:
        raise InputError(f"{clock!r}", where=CLOCK, remedy=f"{BY_REQUESTS}, or leave it out")
    folder = Path(record) if record else None
    return PluginSettings(policy, fitted, folder, clock == BY_REQUESTS, chunks)


def _policies(
    table: SettingsTable, environment: Mapping[str, str]
) -> tuple[LanePolicy | None, FittedTable | None, LanePolicy | None]:
    """Return the policy to run, its fit, and that of a CPU tier; None for what is not named."""
    chunks = _in_table(table.cpu_tier, _WHERE, "cpu_tier")
    if table.policy is not msgspec.UNSET:
        return _in_table(table.policy, _WHERE, "policy"), None, chunks
    path = table.recommendation or environment.get(RECOMMENDATION)
    if not path:
        return None, None, chunks
    document = document_in(_readable(path), REMEDY)
    if _is_cache_study(document) and not (table.cache_study or environment.get(CACHE_STUDY)):
        raise InputError(
            "a cache study, not checked for an engine",
            where=path,
            remedy=f"tune for the deployment (--gpu, --model), or set {CACHE_STUDY}=1",
        )
    policy = lane_policy(policy_in(document, path), f"{path}: policy.name")
    tier = document.get("tier")
    if chunks is None and isinstance(tier, Mapping) and "policy" in tier:
        chunks = _in_table(tier["policy"], path, "tier.policy")
    return policy, read_fit(document, policy, path), chunks


def _in_table(given: Any, where: str, name: str) -> LanePolicy | None:
    """Return the policy in a table `name` at `where`; None where that is not there."""
    if given is msgspec.UNSET:
        return None
    document = {"policy": {"params": {}, **given} if isinstance(given, dict) else given}
    place = where if name == "policy" else f"{where}: {name}"
    return lane_policy(policy_in(document, place), f"{place}: policy.name")


def _readable(text: str) -> Path:
    """Return the path of a file that can be read at once: no pipe, no device, nothing huge."""
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
    """Return whether a recommendation was made without a deployment, and so without flags.

    Earlier versions of kvscope gave flags to every recommendation, and named no deployment.
    """
    return "verdict" in document and not (document.get("deployment") or document.get("flags"))
