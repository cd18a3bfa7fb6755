"""KV groups of a hybrid model: layers that share a block table, and its tokens per block.

Source: vLLM 0.32.0, vllm/v1/kv_cache_interface.py and vllm/v1/core/kv_cache_utils.py.
"""

from __future__ import annotations

import math
from typing import Literal, Self, get_args

from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.deployment.architecture import LayerKinds

_LEAST_BLOCK = 16  # that kernels of vLLM's backends take
_STATES = 3  # of a request: before the step in progress, after it, and after the planned one

GroupKind = Literal["full", "sliding", "chunked", "linear"]


class KvGroup(Struct, frozen=True):
    """Layers that share one block table.

    A block holds the KV of `block_tokens` tokens in `layers` layers; for linear attention (`kind`
    "linear") the states at the end of these tokens. The other kinds are "full" attention, "sliding"
    windows of `window_tokens`, and "chunked" local attention with chunks of `window_tokens`, which
    is 0 otherwise. A step writes linear layers' state at its end and, with `export_tokens`, the
    last one before at which a hit can end, if a multiple of `export_tokens` tokens from its start.
    """

    kind: GroupKind
    block_tokens: int
    window_tokens: int = 0
    layers: int = 1
    export_tokens: int = 0

    @property
    def spec(self) -> tuple[GroupKind, int, int]:
        """Kind, block size and window; vLLM looks up groups with the same spec together."""
        return self.kind, self.block_tokens, self.window_tokens

    @property
    def blocks_for_hit(self) -> int:
        """Blocks that a hit needs before its end: those of a window, or one state."""
        if self.kind == "linear":
            return 1
        return -(-(self.window_tokens - 1) // self.block_tokens)

    def most_blocks(self, in_flight_tokens: int) -> int | None:
        """Return the most blocks that a request holds, None (no limit) for full attention.

        `in_flight_tokens` are the tokens of unfinished steps: their windows are still in use.
        """
        if self.kind == "full":
            return None
        if self.kind == "linear":
            return _STATES + (self.export_tokens > 0)
        if self.kind == "chunked":
            return -(-(self.window_tokens + in_flight_tokens) // self.block_tokens)
        return -(-(self.window_tokens - 1 + in_flight_tokens) // self.block_tokens) + 1


class KvGroups(Struct, frozen=True):
    """The groups that share one pool of blocks.

    `retention_tokens` is vLLM's `prefix_cache_retention_interval`, for blocks of sliding layers and
    for states. 0, the default, keeps those before the end of a prompt and before a branch point of
    prompts; k also those before every multiple of k tokens; None keeps all. `match_tokens` is
    `prefix_match_unit`: the tokens that one hash covers; None for vLLM's default. Raises UsageError
    for values that vLLM refuses, and if a block of states does not span whole blocks of all groups.
    """

    groups: tuple[KvGroup, ...]
    retention_tokens: int | None = 0
    match_tokens: int | None = None

    def __post_init__(self) -> None:
        interval = self.retention_tokens
        if self.state_tokens and self.state_tokens != self.alignment_tokens:
            raise UsageError(
                "states in blocks of another size than attention's are not simulated",
                where="a hybrid model",
                remedy="give all groups one block size, as vLLM does",
            )
        if self.match_tokens is not None:
            self._check_match(self.match_tokens)
        if interval is None:
            return
        if interval and not self.sparse:
            raise UsageError(
                f"{interval} has no effect without sliding layers or linear attention",
                where="prefix_cache_retention_interval",
                remedy="leave it at 0",
            )
        if interval < 0 or interval % self.alignment_tokens:
            raise UsageError(
                f"{interval} is not a multiple of {self.alignment_tokens} tokens",
                where="prefix_cache_retention_interval",
                remedy=f"try {max(1, interval // self.alignment_tokens) * self.alignment_tokens}",
            )

    def retaining(self, tokens: float) -> Self:
        """Return the groups with a retention interval of `tokens`, rounded down; inf keeps all.

        Above 0, it is at least the smallest valid interval. Without windows and states: unchanged.
        """
        if not self.sparse:
            return self
        if math.isinf(tokens):
            return replace(self, retention_tokens=None)
        steps = max(tokens // self.alignment_tokens, 1 if tokens > 0 else 0)
        return replace(self, retention_tokens=int(steps) * self.alignment_tokens)

    def in_blocks_of(self, tokens: int) -> Self:
        """Return the groups with blocks of `tokens` tokens.

        Unchanged if the groups' block sizes differ: then the model sets them.
        """
        if len({group.block_tokens for group in self.groups}) > 1:
            return self
        return replace(
            self, groups=tuple(replace(each, block_tokens=tokens) for each in self.groups)
        )

    @property
    def sparse(self) -> bool:
        """Whether the retention interval decides which blocks some layers keep."""
        return any(group.kind in {"sliding", "linear"} for group in self.groups)

    @property
    def take_drafter(self) -> bool:
        """Whether hits with a drafter are simulated for these groups.

        Full attention with sliding windows: if a block of full attention spans `hit_tokens` tokens.
        Full attention alone or with linear attention: if the blocks of all groups do, so that no
        hit ends within a block. Other kinds are not simulated.
        """
        kinds = {group.kind for group in self.groups}
        full = {group.block_tokens for group in self.groups if group.kind == "full"}
        if kinds == {"full", "sliding"}:
            return full == {self.hit_tokens}
        sizes = {group.block_tokens for group in self.groups}
        return kinds <= {"full", "linear"} and sizes == {self.hit_tokens}

    def shares_drafts(self, group: KvGroup) -> bool:
        """Whether `group` holds a drafter's KV, or is looked up together with a group that does.

        Engines that recompute the last block of a hit do so in these groups: attention with blocks
        as large as the largest of sliding windows; without sliding windows, all attention groups.
        """
        windows = [each.block_tokens for each in self.groups if each.kind == "sliding"]
        return group.kind != "linear" and group.block_tokens == max(
            windows, default=group.block_tokens
        )

    @property
    def alignment_tokens(self) -> int:
        """Least common multiple of block sizes (`scheduler_block_size`), the unit of retention."""
        return math.lcm(*(group.block_tokens for group in self.groups))

    @property
    def hit_tokens(self) -> int:
        """Granularity of hits, in tokens: every hit ends at a multiple of this number.

        It is `alignment_tokens`, or the tokens of a hash where hits end within blocks: if a block
        of states has several hashes, and each block of windows and chunks has one. Source: vLLM
        0.32.0, kv_cache_utils.py (partial_hash_hits_enabled).
        """
        unit = self.match_tokens or self.block_tokens
        fine = all(
            group.kind in {"full", "linear"} or group.block_tokens == unit for group in self.groups
        )
        return unit if fine and unit < self.state_tokens else self.alignment_tokens

    @property
    def state_tokens(self) -> int:
        """Tokens between two states that can be kept; 0 without linear attention."""
        return next((group.block_tokens for group in self.groups if group.kind == "linear"), 0)

    @property
    def layer_share(self) -> float:
        """Tokens that a pool holds the KV of in all layers, as a share of blocks x `block_tokens`.

        Below 1 where several groups hold a token's KV; above 1 with compressed attention, whose
        blocks of entries span more tokens. Blocks of states hold no token's KV, and do not count.
        """
        held = sum(
            group.layers / group.block_tokens for group in self.groups if group.kind != "linear"
        )
        return max(group.layers for group in self.groups) / self.block_tokens / held

    @property
    def export_tokens(self) -> int:
        """`KvGroup.export_tokens` of linear layers; 0: steps write only the state at their end."""
        return max(group.export_tokens for group in self.groups)

    @property
    def block_tokens(self) -> int:
        """The greatest common divisor of all groups' block sizes, the unit of the pool."""
        return math.gcd(*(group.block_tokens for group in self.groups))

    def matching(self, unit: int | None) -> Self:
        """Return the groups with a `prefix_match_unit`. Raises UsageError if vLLM refuses it."""
        return replace(self, match_tokens=unit)

    def _check_match(self, unit: int) -> None:
        """Raise UsageError for a `prefix_match_unit` that vLLM refuses.

        Source: vLLM 0.32.0, kv_cache_utils.py (resolve_kv_cache_block_sizes).
        """
        where = "prefix_match_unit"
        if len(self.groups) == 1 and unit != self.block_tokens:
            raise UsageError(
                f"{unit} is not the block size, {self.block_tokens},"
                " and the model has one group of layers",
                where=where,
                remedy="leave it out: vLLM refuses it",
            )
        if self.block_tokens % unit:
            raise UsageError(
                f"{unit} does not divide the groups' blocks of {self._sizes} tokens",
                where=where,
                remedy=f"take {math.gcd(unit, self.block_tokens)}, or leave it out",
            )

    @property
    def _sizes(self) -> str:
        return ", ".join(f"{size}" for size in sorted({g.block_tokens for g in self.groups}))

    def contents(self, trace_block: int) -> int:
        """Return how many blocks of all groups together can end within one block of the trace.

        A pool with so many blocks for each block of the trace evicts nothing.
        """
        return sum(max(1, trace_block // group.block_tokens) for group in self.groups)

    def undivided(self, trace_block: int) -> UsageError | None:
        """Return the error for a trace with blocks of this size, None if it can be replayed.

        The size must divide `hit_tokens` and the blocks of every group. It may be a multiple of a
        sliding window's blocks instead, or of full attention's if all other groups are windows; as
        a multiple of all blocks, also of `hit_tokens`: hits then end at the ends of trace blocks.
        """
        kinds = {group.kind for group in self.groups}
        dividing = {"full", "sliding"} if kinds <= {"full", "sliding"} else {"sliding"}
        sizes = [
            group.block_tokens
            for group in self.groups
            if group.kind not in dividing or trace_block % group.block_tokens
        ]
        if not sizes and trace_block % self.hit_tokens == 0:
            return None
        finest = math.gcd(self.hit_tokens, *sizes)
        if finest % trace_block == 0:
            return None
        what = f"the model's of {self._sizes}"
        if self.hit_tokens < self.block_tokens:
            what = f"a prefix_match_unit of {finest}"
        fits = math.gcd(finest, trace_block)
        best = fits if fits >= _LEAST_BLOCK else finest
        remedy = f"hash the trace in blocks of {best} tokens (`kvscope hash`)"
        if self.state_tokens:
            remedy += f", or start vLLM with --block-size {trace_block}: block_size in kvscope.toml"
        return UsageError(
            f"the trace's blocks of {trace_block} tokens do not divide {what}",
            where="a hybrid model",
            remedy=remedy,
        )

    @property
    def smaller_windows(self) -> bool:
        """Whether blocks of a sliding window hold fewer tokens than those of full attention."""
        full, sliding = (
            [group.block_tokens for group in self.groups if group.kind == kind]
            for kind in ("full", "sliding")
        )
        return max(full, default=0) > min(sliding, default=max(full, default=0))

    @property
    def in_words(self) -> str:
        """The groups in a sentence or two, for reports."""
        number = dict.fromkeys(dict.fromkeys(group.spec for group in self.groups), 0)
        for group in self.groups:
            number[group.spec] += 1
        parts = []
        for (kind, _, window), times in number.items():
            what = f"{kind} of {window:,} tokens" if window else f"{kind} attention"
            parts.append(f"{times} x {what}" if times > 1 else what)
        interval = "all" if self.retention_tokens is None else f"{self.retention_tokens:,}"
        return (
            f"A block is of one group of layers: {', '.join(parts)}."
            f" Retention interval of {'states' if self.state_tokens else 'windows'}: {interval}"
            " (vLLM's default from 0.29 on is 0, and all before)."
        )

    @property
    def text(self) -> str:
        """The groups in one word, such as `sliding/16/128/12+full/16/0/12@0`.

        A group is kind/block_tokens/window_tokens/layers, and /export_tokens if above 0. Behind `@`
        are `retention_tokens` ("all" for None), and /match_tokens if stated.
        """
        groups = (
            f"{group.kind}/{group.block_tokens}/{group.window_tokens}/{group.layers}"
            + (f"/{group.export_tokens}" if group.export_tokens else "")
            for group in self.groups
        )
        interval = "all" if self.retention_tokens is None else self.retention_tokens
        unit = f"/{self.match_tokens}" if self.match_tokens else ""
        return f"{'+'.join(groups)}@{interval}{unit}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the groups that `text`, written as by the property `text`, describes."""
        written, _, interval = text.partition("@")
        groups = []
        for group in written.split("+"):
            kind, *numbers = group.split("/")
            groups.append(KvGroup(_KINDS[kind], *map(int, numbers)))
        interval, _, unit = interval.partition("/")
        kept = None if interval == "all" else int(interval)
        return cls(tuple(groups), kept, int(unit) if unit else None)


_KINDS: dict[str, GroupKind] = {kind: kind for kind in get_args(GroupKind)}


def kv_groups(
    kinds: LayerKinds, block_tokens: int, full_times: int = 1, other_times: int = 1
) -> KvGroups | None:
    """Return vLLM's groups of a hybrid model; None for other models, and if groups are unknown.

    They are unknown without `kinds.alike`, and without the window of windowed layers or the state
    of linear ones. Each group has about as many layers as the rarer kind, so that blocks have equal
    bytes. A block spans `full_times` x `block_tokens` tokens in full layers, `other_times` x
    `block_tokens` in other layers.

    Source: vLLM 0.32.0, kv_cache_utils.py, _get_kv_cache_groups_uniform_page_size and
    unify_kv_cache_spec_page_size.
    """
    if not (kinds.hybrid and kinds.alike and (kinds.state if kinds.linear else kinds.window)):
        return None
    kind: GroupKind = "linear" if kinds.linear else "chunked" if kinds.chunked else "sliding"
    buckets: list[tuple[GroupKind, int]] = [("full", kinds.full)]
    buckets.insert(kinds.full_first, (kind, kinds.linear or kinds.windowed))
    counts = [count for _, count in buckets if count]
    least, most = min(counts), max(counts)
    size = most if most < 1.5 * least else least
    groups: list[KvGroup] = []
    for kind, count in buckets:
        number = -(-count // size)
        window = (kinds.window or 0) if kind in {"sliding", "chunked"} else 0
        for group in range(number):
            layers = len(range(group, count, number))
            exports = kinds.state.export_tokens if kind == "linear" and kinds.state else 0
            times = full_times if kind == "full" else other_times
            groups.append(KvGroup(kind, times * block_tokens, window, layers, exports))
    return KvGroups(tuple(groups))
