"""A trace: its summary as in the store, and its prompts as arrays for kernels.

Requests may carry directives: how long their client wants their blocks to stay cached. Names carry
their units; None: the trace does not state the value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Struct

if TYPE_CHECKING:  # a stored trace is looked up without loading NumPy
    from kvscope.core.arrays import Float64s, Int32s, Int64s

DEFAULT_PRIORITY = 35
"""Priority of blocks without a directive. Source: TensorRT-LLM, KvCacheRetentionConfig."""

Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Priority = Annotated[int, msgspec.Meta(ge=0, le=100)]
TtlSeconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Retain(msgspec.Struct, frozen=True, omit_defaults=True, rename={"start": "from"}):
    """How to retain a prompt's tokens from `start` until before `to`; None: to the output's end.

    `priority` (0–100, higher stays longer) holds for `ttl_s` seconds from the request on, then
    DEFAULT_PRIORITY does; `ttl_s` None: without end.
    """

    start: Tokens = 0
    to: Tokens | None = None
    priority: Priority = DEFAULT_PRIORITY
    ttl_s: TtlSeconds | None = None


class Directives(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request's directives: `retain` by range of tokens; the last that covers a token counts.

    `ends`: the conversation has ended. `pause`: the next turn comes after a pause, such as a tool
    call. `refresh`: whether the request renews other requests' directives on its blocks.
    """

    retain: tuple[Retain, ...] = ()
    refresh: bool = True
    ends: bool = False
    pause: bool = False

    @property
    def text(self) -> str:
        """The directives as JSON; equal directives have equal texts."""
        return msgspec.json.encode(self).decode()


class StatedDirectives(Struct, frozen=True):
    """The directives of R requests: `number` (R) is an index into `distinct`, -1 for none."""

    number: Int32s
    distinct: tuple[Directives, ...]

    def select(self, requests: Int64s) -> StatedDirectives:
        """Return the directives of the requests with these numbers."""
        return StatedDirectives(self.number[requests], self.distinct)


class Part(NamedTuple):
    """A part of a prompt, from the previous part's `end` to its own, in tokens from the start.

    Its `kind` is "template" (text of the chat template itself), "system", "tool 3" (the definition
    of the third tool, maybe followed by its name), "user", "assistant" or "tool result".
    """

    kind: str
    end: int


class PromptParts(Struct, frozen=True):
    """The parts of R prompts: paths in a tree of P parts, as prompts are paths in a trie of blocks.

    `last` (R) is the last part of each prompt, 0 for none. For each part (P + 1 entries, 0 the
    root), `above` is the part before it, `kind` an index into `kinds`, `end` its end in tokens.
    """

    last: Int32s
    above: Int32s
    kind: Int32s
    end: Int32s
    kinds: tuple[str, ...]

    def of(self, request: int) -> list[Part] | None:
        """Return the parts of the prompt of request number `request`, None if unknown."""
        parts, at = [], int(self.last[request])
        while at:
            parts.append(Part(self.kinds[self.kind[at]], int(self.end[at])))
            at = int(self.above[at])
        return parts[::-1] or None


Lineage = Literal["given", "inferred", "none"]

# Names in a request's `vllm_xargs`, which carry to an engine what OpenAI's own fields do not.
OUTPUTS = "kvscope_outputs"  # the tokens to generate
TYPE, TURN = "kvscope_type", "kvscope_turn"  # for policies that distinguish categories
ARRIVAL = "kvscope_arrival_s"  # the arrival in a trace that is replayed
PROBE = "kvscope_probe"  # true: a measurement of kvscope's, which no recording has


class Trace(Struct, frozen=True):
    """One trace in a store. `trace_id` is the store's key, `name` the user's name for it.

    Both may be reused after the trace is removed. `content_hash` is a digest of the input and of
    the options with which it was read. `models`, LoRA `adapters`, cache `salts` and `workers` count
    the distinct values in the requests; `tenants` counts the combinations of the first three, which
    share no blocks. `measured_requests` counts those with a TTFT or another of `Measurements`.
    """

    DOCUMENT: ClassVar[str] = (
        "name format block_size requests accesses distinct_blocks span_s input_tokens output_tokens"
        " lineage bad_lines models adapters salts tenants workers measured_requests"
    )
    trace_id: int
    name: str
    source: str
    format: str
    block_size: int
    requests: int
    accesses: int
    distinct_blocks: int
    span_s: float
    input_tokens: int
    output_tokens: int
    lineage: Lineage
    has_users: bool
    lines: int
    bad_lines: int
    out_of_order: int
    notes: tuple[str, ...]
    content_hash: str = ""
    models: int = 0
    adapters: int = 0
    salts: int = 0
    tenants: int = 0
    workers: int = 0
    measured_requests: int = 0

    @property
    def has_hashes(self) -> bool:
        """Whether requests have block hashes; traces of lengths alone show no reuse."""
        return self.accesses > 0


class PromptLengths(Struct, frozen=True):
    """The length of each of R requests, in tokens and in blocks: R entries per array.

    `parent` is the previous turn of the request's conversation, -1 for none. Of a prompt's
    `blocks`, `full_blocks` are full. After the turn, `cached_blocks` of prompt and output are
    cached; the first `carried_blocks` of these have ids, for outputs from a later turn's prompt.
    """

    block_size: int
    input_tokens: Int32s
    parent: Int32s
    blocks: Int32s
    full_blocks: Int32s
    cached_blocks: Int32s
    carried_blocks: Int32s


class PromptPaths(PromptLengths, frozen=True):
    """Prompts as paths in a trie of N blocks.

    `block_parent` (N + 1 entries, 0 is the root) leads from a prompt's `leaf` up to the root, and
    from `carried_leaf`, the last of its `carried_blocks`.
    """

    leaf: Int32s
    carried_leaf: Int32s
    block_parent: Int32s

    @property
    def full_leaf(self) -> Int32s:
        """The last full block of each prompt (R entries), 0 for none."""
        import numpy as np  # a stored trace is looked up without it

        is_partial = self.blocks > self.full_blocks
        return np.where(is_partial, self.block_parent[self.leaf], self.leaf)


class Measurements(Struct, frozen=True):
    """Measurements of R requests from the recording of the trace, R entries per array.

    `worker` (the engine, replica or rank) is an index into `workers`, -1 if unknown. Times count
    from the request's arrival: `ttft_s` until its first token, `queue_s` until admission,
    `duration_s` until its last token; NaN if not measured. `cached_tokens` are the prompt's hits,
    -1 if unknown. `delay_s` is the time of a user or a tool after the previous turn, or after the
    request `waits_for` (-1: none); NaN if not stated.
    """

    worker: Int32s
    ttft_s: Float64s
    queue_s: Float64s
    duration_s: Float64s
    cached_tokens: Int32s
    delay_s: Float64s
    waits_for: Int32s
    workers: tuple[str, ...]

    def select(self, requests: Int64s) -> Measurements:
        """Return the measurements of `requests`; `waits_for` is an index into these, else -1."""
        import numpy as np  # a stored trace is looked up without it

        place = np.full(len(self.waits_for) + 1, -1, dtype=np.int32)  # the last is of none
        place[requests] = np.arange(len(requests))
        columns = {name: getattr(self, name)[requests] for name in self.__struct_fields__[:-1]}
        columns["waits_for"] = place[columns["waits_for"]]
        return Measurements(**columns, workers=self.workers)


class Tenants(Struct, frozen=True):
    """The model, LoRA adapter and cache salt that each of R requests names, as numbers; -1: none.

    Requests that differ in one of them share no blocks. `hash_id` (an entry for each of N blocks,
    after the root's) is the trace's own id, equal for equal tokens of different tenants.
    """

    model: Int32s
    adapter: Int32s
    salt: Int32s
    hash_id: Int64s


class Prompts(PromptPaths, frozen=True):
    """Prompts with their arrivals, outputs, conversations, users and categories.

    `user` numbers the users from 0, -1 if the trace has none; `category` is an index into
    `categories`, the names of (type, turn bucket), ordered by type and turn. `clock` is the number
    (from 0) of a session whose arrivals count from an unknown start, -1 for the trace's own clock.
    `measurements` and `directives` are None if the trace has none.
    """

    arrival_s: Float64s
    output_tokens: Int32s
    conversation: Int32s
    user: Int32s
    category: Int32s
    clock: Int32s
    categories: tuple[str, ...]
    measurements: Measurements | None = None
    directives: StatedDirectives | None = None
