"""Records of one replay of a trace and its results; the fields are those of `--json`.

Names carry their units. Rates are fractions (0-1); None: the trace does not state the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from kvscope.core.hits import HitDefinition
from kvscope.core.percentiles import Percentiles

Tenant = Literal["user", "conversation"]


CapacityModel = Literal["cache", "engine"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Hits and latencies of the counted requests, or of a part of them.

    `violations` is the number of requests with a TTFT above the SLO, and `tel_ms` their tail excess
    latency, Σ (TTFT - SLO); both None without an SLO. `ttft_ms` is on an idle engine; fields
    `queued_...` are behind earlier requests, None if the trace has no times or was sampled.
    """

    requests: int
    hit_tokens: int
    total_tokens: int
    token_hit_rate: float
    block_hit_rate: float
    request_hit_rate: float
    uncached_tokens: Percentiles
    ttft_ms: Percentiles
    queued_ttft_ms: Percentiles | None
    tel_ms: float | None
    violations: int | None
    queued_tel_ms: float | None
    queued_violations: int | None


def hit_rate(setting: RunSetting, outcome: Outcome) -> float:
    """Return the token, block or request hit rate, as the setting's definition weights it."""
    return float(getattr(outcome, f"{setting.definition.weight}_hit_rate"))


class PartOutcome(Struct, frozen=True):
    """The outcome of one category, or of requests that arrive within `length_s` after `start_s`.

    Either `category` or both `start_s` and `length_s` are set.
    """

    category: str | None
    start_s: float | None
    length_s: float | None
    outcome: Outcome


class Misses(Struct, frozen=True):
    """Input tokens that missed, by cause; with the hits they add up to all input tokens.

    `evicted`: computed before, no longer cached. `diverged`: new, where the previous turn's prompt
    had other blocks. `cold`: all other new tokens. `tail`: cannot hit in any prefix cache.
    """

    evicted_tokens: int
    diverged_tokens: int
    cold_tokens: int
    tail_tokens: int


class RunSetting(Struct, frozen=True):
    """The settings, besides policy and capacity, on which a run's results depend.

    `capacity_model` says what the capacity bounds. "cache": idle cached blocks, or with `engine`
    the prefix tree of a simulated SGLang. "engine": the pool of a simulated vLLM, with the blocks
    of running requests. Requests arrive `rate_scale` times as fast as in the trace. With `isolate`,
    no two users or no two conversations share blocks; None: as in the trace. `latency` is the name
    of the latency profile with these times:

    TTFT = base + max(floor, per_token * u) + per_token_pair * u * (c + u / 2) for u uncached and c
    cached tokens. `request_s` is the part of `base_s` outside an engine's steps. A step without
    prompts takes `decode_base_s` + `decode_request_s` for each request in it +
    `decode_context_token_s` for each token of these requests' contexts; with `decode_base_s` None,
    a decoded token costs as much as one of a prompt. `sample_rate` is the share of the trace that
    was replayed. The two `max_num_` limits are a simulated engine's, else None. `tiers` is the
    value of `--tiers`, empty for a pool alone; `tier_mode` (the value of `--offload`) and
    `block_bytes` apply to tiers. `kv_groups` is the `KvGroups.text` of a hybrid model on an engine,
    else empty. `engine` is the version of vLLM, such as `vllm@0.22`, empty if simulated as the
    newest; with `capacity_model` "cache" the version of SGLang, whose prefills have up to
    `max_num_batched_tokens` tokens, empty for a cache alone.
    """

    definition: HitDefinition
    latency: str
    base_s: float
    per_token_s: float
    per_token_pair_s: float
    slo_s: float | None = None
    rate_scale: float = 1.0
    isolate: Tenant | None = None
    sample_rate: float = 1.0
    capacity_model: CapacityModel = "cache"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    tiers: str = ""
    tier_mode: str | None = None
    block_bytes: int | None = None
    floor_s: float = 0.0
    request_s: float = 0.0
    decode_base_s: float | None = None
    decode_request_s: float = 0.0
    decode_context_token_s: float = 0.0
    kv_groups: str = ""
    engine: str = ""

    @property
    def exact(self) -> bool:
        """Whether the whole trace was replayed."""
        return self.sample_rate == 1

    @property
    def on_tree(self) -> bool:
        """Whether a simulated SGLang serves the requests, with its prefix tree."""
        return self.capacity_model == "cache" and bool(self.engine)

    @property
    def holds_running(self) -> bool:
        """Whether the capacity also holds the blocks of running requests."""
        return self.capacity_model == "engine" or self.on_tree


@dataclass(frozen=True, slots=True)
class TierOutcome:
    """Hits of the counted requests in one tier, and its evictions in the whole replay.

    `token_hit_rate` is a share of all input tokens, so the tiers' rates add up to the cache's.
    `transfer_ms` is the sum of waits for the tier's blocks over all counted requests; a read takes
    `read_latency_ms`, then its bytes at `read_bytes_per_s` (None: no time). `read_bytes` is None if
    the size of a block is unknown. SGLang copies from its host tier during a batch: `transfer_ms`
    is then no extra wait, and `read_bytes` are per GPU. `ttl_s` and `demotions` (evictions to a
    lower tier) are of tiers that no engine has; earlier versions of kvscope replayed them.
    """

    name: str
    policy: str
    capacity_blocks: int
    ttl_s: float | None = field(default=None, kw_only=True)
    read_latency_ms: float
    read_bytes_per_s: float | None
    hit_blocks: int
    hit_tokens: int
    token_hit_rate: float
    transfer_ms: float
    read_bytes: int | None
    evictions: int
    demotions: int = field(default=0, kw_only=True)


class Run(Struct, frozen=True):
    """One policy at one capacity over one trace, and its results.

    `params` has every parameter of the policy. `leaves` says which blocks it may evict: "leaf",
    those without cached children, or "any". With `hindsight`, the policy is an oracle.
    `hit_rate_error` bounds the error of a sampled run's hit rate (in the definition's weight) with
    95 % confidence, None for exact runs. `misses` is None under a flat definition. `tiers` is empty
    for a single tier; else `capacity_blocks` is the sum of theirs, or for SGLang its pool alone.
    `preemptions` and `turned_away` (requests larger than the pool): None if no engine is simulated.
    `deployment` is the replayed deployment by the keys of kvscope.toml, None if none was stated.
    `kvscope` is the version that replayed it. `created_at` (UTC) and `run_id`, its number in the
    store, are None until the run is stored.
    """

    policy: str
    leaves: str
    params: Mapping[str, float]
    hindsight: bool
    capacity_blocks: int
    setting: RunSetting
    outcome: Outcome
    evictions: int
    misses: Misses | None = None
    parts: tuple[PartOutcome, ...] = ()
    hit_rate_error: float | None = None
    tiers: tuple[TierOutcome, ...] = ()
    preemptions: int | None = None
    turned_away: int | None = None
    deployment: Mapping[str, Any] | None = None
    kvscope: str = ""
    created_at: datetime | None = None
    run_id: int | None = None
