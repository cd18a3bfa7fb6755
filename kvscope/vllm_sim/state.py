"""All that an engine's steps read and write, as a few tables of records.

Kernels get these tables in one tuple. Records keep that tuple short: numba compiles and passes few
large arrays much faster than many small ones. Whole numbers have 64 bits, most of those that grow
with the trie or the pool 32.
"""

from __future__ import annotations

import math
from typing import NamedTuple, get_args

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvscope.core.arrays import Bools, Float64s, Int32s, Int64s, Records, record_type
from kvscope.core.errors import UsageError
from kvscope.core.hits import standard
from kvscope.core.jit import Function
from kvscope.core.trace import Prompts
from kvscope.deployment.kv_groups import GroupKind, KvGroup, KvGroups
from kvscope.policies.base import LanePolicy, Policy
from kvscope.policies.lru import Lru, LruRetention
from kvscope.replay.kernels.lanes import LaneFunctions, lane_functions
from kvscope.replay.kernels.loop import TablePeriods
from kvscope.replay.replay import NO_TABLES, Tables
from kvscope.replay.structures.bitset import words_for
from kvscope.replay.structures.recent import nothing_recent
from kvscope.replay.traffic import Traffic, traffic, with_named_blocks
from kvscope.vllm_sim.offload_state import Offload, empty_offload, no_offload
from kvscope.vllm_sim.settings import NO_LIMIT, EngineSettings, StepCost

NONE = -1
ROOT = 0  # as a content: none, the block has no hash
UNHASHED = 0  # the queue of free blocks without a hash; lane k is queue k + 1
PINNED = -1  # in no queue: a request uses it
ALWAYS = 2**62
KINDS = get_args(GroupKind)
FULL, SLIDING, CHUNKED, LINEAR = range(len(KINDS))
LOST = -1  # what held it was evicted
PARKED = -2  # in no queue: free, but it has a cached child and the policy keeps such blocks

_BLOCK = "after before queue lane users content twin_after twin_before"
BLOCK = np.dtype(
    [(name, np.int32) for name in _BLOCK.split()] + [("freed", np.int64), ("freed_s", np.float64)]
)
"""A block, or behind the last one the sentinel of a queue; all zeros as long as no request took it.

`queue` is the queue that it is in, a ring through `after` and `before`; PINNED or PARKED where it
is in none. `content` is what its hash stands for, a node of the trie in one group of layers; blocks
with the same content are a ring through `twin_after` and `twin_before`, oldest first. `users`
counts the requests that use it. It was last freed to lane `lane`, at `freed_s` (s), with the
free-sequence number `freed`.

Where hits end within blocks, a second record for each block follows the sentinels, with a second
`content`: the end of a prompt inside the block, by which look-ups find the full block, too.
"""

REQUEST = record_type(
    "prompt outputs leaf length look history_tokens category next_prompt_tokens oversized "
    "computed generated coming slot allocated hashed hits kept written preemptions "
    "drafts drafted reserves junction room skips_at skipped_for planned_step computed_before "
    "copy_at",
    "arrival_s admitted_s first_token_s finished_s",
)
"""What a request needs, and how far it is.

It has `prompt` and `outputs` tokens, and a path of `length` blocks that ends at `leaf`, of which
its first look-up may find `look` blocks; `history_tokens`, `category` and `next_prompt_tokens` are
those of `Traffic`. An `oversized` one needs more than the whole pool. `computed` tokens have their
KV or get it in a planned step; `generated` outputs are known, `coming` ones will be when the
planned steps have ended. It runs in `slot` (NONE: it waits or is done) with blocks for `allocated`
tokens; those of its first `hashed` tokens have a hash, and up to `room` tokens need no new block.
Times are seconds, nan for "not yet".

At its first admission it had `hits` blocks (NONE until then); `written` leading blocks had been
cached by then, evicted or not, and `kept` blocks would have been hits had nothing been evicted. It
was preempted `preemptions` times. Its last planned step computes `drafted` tokens of a drafter, and
the next one `drafts`; `reserves`: its blocks include the room for these (see GROUP).

For hybrid models: at its last look-up only some of the groups had cached its first `junction`
tokens (0: none), so blocks are kept there. Blocks that no token after the first `skipped_for`
attends to have been freed; more can be from `skips_at` computed tokens on. `planned_step` is the
number of the last step planned for it, which began after `computed_before` tokens. Its block
`copy_at`, in which a hit or its prompt ends, is copied before it writes there; NONE without one.
"""

GROUP = record_type(
    "kind block_tokens window_tokens blocks_for_hit most_blocks nodes_per_block blocks_per_node "
    "nodes first_content copied ahead_tokens scratch drafted"
)
"""A group of layers; `kind` (an index in KINDS) and the next three fields are those of `KvGroup`.

A request holds at most `most_blocks` of its blocks at a time. A block spans `nodes_per_block` nodes
of the trie; the content of a node in this group is the node's number plus `first_content`. Where
blocks are smaller than nodes, each of the `nodes` has `blocks_per_node` of them, and the content of
each is by `nodes` more than that of the block before it. `copied` counts the group's entries in
`copies`: the blocks that the step being planned copies, and their copies.

For a drafter, a request gets room for `ahead_tokens` more tokens, or `scratch` blocks for states of
drafted tokens. `drafted` is 1 where a hit needs a window of one more block, which is computed
again, else 0.
"""

SPEC = record_type("begin end cached_tokens dropped_tokens verified")
"""The groups from `begin` to before `end`, which are looked up together.

For a drafter, the last `dropped_tokens` of the prefix that they have cached are computed again (0
without one). `cached_tokens` is these groups' hit in the last look-up, NONE before; `verified` is
scratch space of a look-up, see `note_verified`.
"""

STATE = record_type(
    "blocks lanes block_size max_num_seqs max_num_batched_tokens overlapped reserve_full_prompt "
    "free fresh evictions freed running preempted next arrived front in_progress "
    "planned budget prefill_tokens steps finished admitted period "
    "alignment_tokens segment_tokens keeps_boundaries state_tokens rehashes_states "
    "hybrid hash_tokens hashes_always unhashed_last export_tokens draft_tokens drops leaf selects "
    "adaptive taken_lane second_freed",
    "now_s ready_s end_s cost_s ttl_s "
    "base_s prefill_token_s prefill_pair_s floor_s launch_s "
    "decode_base_s decode_token_s decode_context_token_s second_worth",
)
"""One record: the settings of the engine, and counts.

Settings: `overlapped` is `async_scheduling`; `reserve_full_prompt`, `rehashes_states` and
`unhashed_last` are as in `EngineSettings`, the costs as in `StepCost`, and `ttl_s` is the policy's
TTL (infinity without one). The pool has `blocks` blocks and `lanes` lanes.

Counts: `free` blocks, of which those from `fresh` on were never taken; `evictions` of blocks so
far, and `freed`, the last free-sequence number; `steps` planned; requests `finished` (or rejected)
and `admitted`. `running` requests run and `preempted` ones wait to start over; `next` is the first
of the `arrived` ones that was never admitted. The last row of `path` has the path of request
`front` (NONE: of none). `in_progress` and `planned` are the numbers of requests in the step in
progress, which ends at `end_s`, and in the planned one, which may get `budget` more tokens, takes
`cost_s` and computes `prefill_tokens` of prompts. From `ready_s` on the next one can be planned.
`period` is the policy's table in force.

Hybrid models (`hybrid`: not one group of full attention): hits are multiples of `alignment_tokens`.
Windows and states are kept before every multiple of `segment_tokens` (0: none) and, with
`keeps_boundaries`, before the end of a prompt and a junction. Steps of prompts end at multiples of
`state_tokens`, the block size of linear attention (0 without); where that is more than
`alignment_tokens`, hits end within blocks. With `export_tokens` a step may export a state: it also
writes, to a block of its own, the last state before its end at which a hit can end, if that is a
multiple of `export_tokens` after its begin. Blocks get their hash every `hash_tokens` tokens; with
`hashes_always`, any step may change hashes.

A drafter has `draft_tokens` computed with each decoded token; with `drops` the last block of a hit
is computed again, else blocks get a hash once the next token is known. Of the policy, `leaf`: it
evicts leaves only; `selects`: it does not admit all turns; `adaptive` as in `LanePolicy`. The last
evicted block came from `taken_lane`; NONE if other lanes may have changed since. Of the other
lanes' blocks, the next to be evicted has the worth `second_worth` and the free-sequence number
`second_freed`.
"""


class GroupFunctions(NamedTuple):
    """Functions of module `hybrid` that engines call for hybrid models."""

    look_up: Function
    hash_kept: Function
    use_hits: Function
    fits: Function
    allocate: Function
    blocks_missing: Function
    cut: Function
    free_skipped: Function
    free_copied: Function


class StorageFunctions(NamedTuple):
    """Functions of module `storage` that engines call for storage below their CPU tier."""

    poll: Function
    read_chunk: Function
    write_on: Function
    flush: Function
    forget_answers: Function


class Machine(NamedTuple):
    """An engine with n blocks, S slots (requests that have blocks) for R requests, N trie nodes.

    `blocks` (n and a sentinel for each queue), `requests` (R) and `state` (1) are records of BLOCK,
    REQUEST and STATE. Per content, a node of the trie (N + 1) in each group: `holders` is 1 + the
    oldest block that holds it, 0 if no block ever has and `LOST` if none does now; `children`, if
    the policy evicts leaves, how many of its child nodes are held; for a model with states,
    `written` is the step in which the state was written. `parents` (N + 1) has each node's parent.
    `busy` has a bit per lane, set if the lane may have blocks; `cuts` (R x P) are the P depths, in
    blocks, that divide a request's path into parts. Row s of `table` lists the blocks of
    the request in slot s, row s of `path` the nodes that it fills; row S of `path` belongs to the
    front request of the waiting queue. `running` is in order of admission; `preempted` and the free
    `slots` are stacks. Row 0 of `batch` lists the requests that the step in progress computes, row
    1 those of the planned step, and `yields` which of them get a token. `recent`: uncached tokens
    of recent requests. The policy has parameters `p`, `functions`, and learned `tables`.

    `groups` (G) are records of GROUP (one, of full attention, unless hybrid), and `specs` of SPEC,
    full attention first. `table` has G rows per slot; row g of `copies` lists the blocks that the
    planned step copies, each before its copy. `grouped` holds the functions for hybrid models,
    `storage` those for storage below a CPU tier (`offload`); with a tier, loading requests have
    slots, too.
    """

    blocks: Records
    busy: NDArray[np.uint64]
    holders: Int32s
    parents: Int32s
    children: Int32s
    written: Int32s
    requests: Records
    cuts: Int32s
    state: Records
    table: Int64s
    path: Int32s
    running: Int64s
    preempted: Int64s
    slots: Int64s
    batch: Int64s
    yields: Bools
    recent: Int64s
    p: Float64s
    tables: TablePeriods
    groups: Records
    specs: Records
    copies: Int64s
    functions: LaneFunctions
    grouped: GroupFunctions
    storage: StorageFunctions
    offload: Offload


def idle_machine(
    prompts: Prompts,
    policy: Policy,
    settings: EngineSettings,
    cost: StepCost,
    *,
    tables: Tables = NO_TABLES,
) -> Machine:
    """Return an idle engine that waits for the trace's first request; all its blocks are free.

    `tables` are those of a policy that has learned some. Raises UsageError for a policy without
    lanes, and for more blocks than 32 bits can number.
    """
    from kvscope.vllm_sim.hybrid import group_functions  # which takes machines
    from kvscope.vllm_sim.storage import storage_functions

    kind = lane_class(policy)
    if settings.groups is not None:
        tier = settings.offload is not None
        checked = _checked_groups(policy, settings.groups, prompts.block_size, tier=tier)
        settings = replace(settings, groups=checked)
    tables = tables.chosen(policy, settings.usable_blocks)
    known = tables.classified(policy, engine_traffic(prompts))
    groups = settings.groups or KvGroups((KvGroup("full", known.block_size),))
    lanes = tables.categories if kind.by_category else kind.lanes
    requests = _requests(known, settings)
    slots = min(settings.max_num_seqs, max(len(requests), 1))
    room = tokens_kept(known) + _tokens_ahead(known, settings)
    tokens = int(room[requests.oversized == 0].max(initial=1))
    layouts = _groups(settings, groups, len(known.block_parent), known.block_size)
    contents = int(layouts.nodes @ layouts.blocks_per_node)
    records = settings.usable_blocks * (1 + hits_within_blocks(settings)) + lanes
    numbers = max(contents, records)
    if numbers >= NO_LIMIT:  # they are in 32 bits
        raise UsageError(
            f"{numbers:,} blocks of a trace or a pool are more than an engine's replay counts",
            where="engine",
            remedy="replay a part, which `kvscope analyze --from TIME` stores, or a smaller pool",
        )
    state = _state(settings, groups, cost, known.block_size)
    state.lanes, state.max_num_seqs = lanes, slots
    state.leaf, state.adaptive = policy.evicts == "leaf", kind.adaptive
    state.selects = kind.admits is not LanePolicy.admits
    state.ttl_s = policy.values.get("ttl_s", math.inf)
    width, offload = -(-tokens // layouts.block_tokens.min()), no_offload()
    width += int(layouts.scratch.max())
    if settings.offload is not None:
        slots += max(slots, 16)  # requests that load hold blocks and do not run
        offload = empty_offload(
            settings.offload,
            contents,
            requests.length,
            settings.usable_blocks,
            slots,
            int(width),
            groups,
            known.block_size,
        )
    machine = Machine(
        blocks=_blocks(settings.usable_blocks, lanes, twice=hits_within_blocks(settings)),
        busy=np.zeros(words_for(lanes), dtype=np.uint64),
        holders=np.zeros(contents, dtype=np.int32),
        parents=known.block_parent,
        children=np.zeros(contents if state[0].leaf else 0, dtype=np.int32),
        written=np.zeros(contents if state[0].state_tokens else 0, dtype=np.int32),
        requests=requests,
        cuts=known.cuts,
        state=state,
        table=np.empty((slots * len(layouts), width), dtype=np.int64),
        path=np.empty((slots + 1, -(-tokens // known.block_size)), dtype=np.int32),
        running=np.empty(slots, dtype=np.int64),
        preempted=np.empty(slots, dtype=np.int64),
        slots=np.arange(slots)[::-1].copy(),
        batch=np.empty((2, slots), dtype=np.int64),
        yields=np.empty((2, slots), dtype=np.bool_),
        recent=nothing_recent(),
        p=policy.settings(),
        tables=tables.periods(),
        groups=layouts,
        specs=_specs(settings, groups, known.block_size),
        copies=np.empty((len(layouts), 2 * slots), dtype=np.int64),
        functions=lane_functions(kind),
        grouped=group_functions(None),
        storage=storage_functions(None),
        offload=offload,
    )
    return machine._replace(
        grouped=group_functions(machine if state[0].hybrid else None),
        storage=storage_functions(machine if offload.state[0].storage else None),
    )


def lane_class(policy: Policy) -> type[LanePolicy]:
    """Return the class of a policy that orders an engine's free blocks by queues (lanes).

    Raises UsageError for a policy without lanes.
    """
    if not isinstance(policy, LanePolicy):
        raise UsageError(
            f"{policy.name} cannot order the blocks of an engine",
            where="--capacity-model engine",
            remedy="take a policy of recency queues, such as lru or tlru",
        )
    return type(policy)


def engine_traffic(prompts: Prompts) -> Traffic:
    """Return the trace as an engine sees it: prompt and output of a request are one path.

    Blocks whose content is not in the trace (outputs that no later turn repeats, prompts with
    too few hashes) become nodes of their own below the trie's nodes, and only their own request
    hits them, after a preemption. `look`, the most blocks to look up, is vLLM's: at most
    floor((I - 1) / B), and no more than the prompt's hashes.
    """
    return with_named_blocks(traffic(prompts, standard()))


def tokens_kept(known: Traffic) -> Int64s:
    """Return how many tokens of each request have KV when its output is complete.

    The last sampled token is never computed, so it has no KV; every request samples one.
    """
    return np.maximum(known.history_tokens - 1, known.input_tokens)


def blocks_needed(known: Traffic, settings: EngineSettings | None = None) -> Int64s:
    """Return the most blocks that each request holds at a time, a partial one included.

    Without groups, these are the blocks of its prompt, its output and a drafter's tokens ahead.
    """
    tokens = tokens_kept(known)
    if settings is not None:
        tokens = tokens + _tokens_ahead(known, settings)
    if settings is None or settings.groups is None:
        return np.asarray(-(-tokens // known.block_size))
    needed = np.zeros_like(tokens)
    for group in settings.groups.groups:
        most = group.most_blocks(settings.in_flight_tokens)
        needed += np.minimum(-(-tokens // group.block_tokens), ALWAYS if most is None else most)
        needed += settings.ahead_tokens.prefilling * (group.kind == "linear")
        needed += hits_within_blocks(settings)  # the one that is copied
    return needed


def _tokens_ahead(known: Traffic, settings: EngineSettings) -> Int64s:
    """Return the draft tokens of each request that get KV room beyond its own tokens."""
    ahead = settings.ahead_tokens
    decodes = known.history_tokens > known.input_tokens + 1
    return np.where(decodes, ahead.decoding, ahead.prefilling).astype(np.int64)


def hits_within_blocks(settings: EngineSettings) -> bool:
    """Return whether hits of a hybrid model may end within a block."""
    groups = settings.groups
    return groups is not None and groups.hit_tokens < groups.block_tokens


def fits(known: Traffic, settings: EngineSettings) -> Bools:
    """Return which requests an engine's whole pool can hold (R); the engine rejects the others."""
    return blocks_needed(known, settings) <= settings.usable_blocks


def _checked_groups(policy: Policy, groups: KvGroups, block_size: int, *, tier: bool) -> KvGroups:
    """Return the groups with the retention of `policy`.

    Raises UsageError for policies other than lru and lru-retention without a TTL, and for trace
    blocks whose size does not fit the groups' blocks or, with a CPU `tier`, is larger.
    """
    if not orders_groups(type(policy)) or math.isfinite(policy.values["ttl_s"]):
        raise UsageError(
            f"{policy.name} has no order for blocks of several kinds of layers",
            where="a hybrid model",
            remedy="take lru, which is vLLM's own, or lru-retention",
        )
    if (undivided := groups.undivided(block_size)) is not None:
        raise undivided
    if tier and groups.block_tokens < block_size:
        raise UsageError(
            f"a CPU tier beside windows in blocks of {groups.block_tokens} tokens is not simulated",
            where="a hybrid model",
            remedy="leave the tier out",
        )
    if isinstance(policy, LruRetention):
        return groups.retaining(policy.values["retention_tokens"])
    return groups


def orders_groups(policy: type[Policy]) -> bool:
    """Return whether a policy can order the blocks of a hybrid model: `lru`, `lru-retention`."""
    return policy in {Lru, LruRetention}


def has_tier(machine: Machine) -> bool:
    """Return whether there is a CPU tier below a machine."""
    return len(machine.offload.members) > 0


def _groups(settings: EngineSettings, groups: KvGroups, nodes: int, block_size: int) -> Records:
    records = np.zeros(len(groups.groups), dtype=GROUP).view(np.recarray)
    contents = 0
    for number, group in enumerate(groups.groups):
        most = group.most_blocks(settings.in_flight_tokens)
        record = records[number]
        record.kind = KINDS.index(group.kind)
        record.block_tokens, record.window_tokens = group.block_tokens, group.window_tokens
        record.blocks_for_hit = group.blocks_for_hit
        record.most_blocks = ALWAYS if most is None else most
        record.nodes_per_block = max(1, group.block_tokens // block_size)
        record.blocks_per_node = max(1, block_size // group.block_tokens)
        record.nodes, record.first_content = nodes, contents
        contents += record.blocks_per_node * nodes
        drafts = settings.ahead_tokens.prefilling
        record.ahead_tokens, record.scratch = (0, drafts) if group.kind == "linear" else (drafts, 0)
        drops = settings.drops_blocks and groups.shares_drafts(group)
        record.drafted = drops and group.kind == "sliding"
    return records


def _specs(settings: EngineSettings, groups: KvGroups, block_size: int) -> Records:
    """Return the SPEC records of groups looked up together (equal `spec`), full attention first."""
    ends: dict[object, tuple[int, int]] = {}
    for number, group in enumerate(groups.groups):
        ends[group.spec] = ends.get(group.spec, (number, 0))[0], number + 1
    order = sorted(ends.values(), key=lambda span: groups.groups[span[0]].kind != "full")
    records = np.zeros(len(order), dtype=SPEC).view(np.recarray)
    dropped = settings.drafter.drops(block_size) if settings.drafter is not None else 0
    for number, (begin, end) in enumerate(order):
        records[number].begin, records[number].end = begin, end
        if settings.drops_blocks and groups.shares_drafts(groups.groups[begin]):
            own = groups.groups[begin].block_tokens if settings.groups is not None else dropped
            records[number].dropped_tokens = own
    return records


def _blocks(usable: int, lanes: int, *, twice: bool) -> Records:
    """Return records of free blocks, then sentinels of empty queues.

    With `twice`, a second record of each block follows, for hits that end within it.
    """
    records = usable + lanes + 1 + usable * twice
    blocks = np.zeros(records, dtype=BLOCK).view(np.recarray)
    sentinels = np.arange(usable, usable + lanes + 1)
    blocks.after[sentinels] = blocks.before[sentinels] = sentinels
    return blocks


def _requests(known: Traffic, settings: EngineSettings) -> Records:
    """Return the records of waiting requests; those larger than the pool are marked oversized."""
    requests = np.zeros(len(known.leaf), dtype=REQUEST).view(np.recarray)
    requests.prompt = known.input_tokens
    requests.outputs = np.maximum(known.history_tokens - known.input_tokens, 1)
    requests.oversized = ~fits(known, settings)
    for name in (
        "leaf",
        "length",
        "look",
        "history_tokens",
        "category",
        "next_prompt_tokens",
        "arrival_s",
    ):
        requests[name] = getattr(known, name)
    requests.slot = requests.hits = requests.copy_at = NONE
    requests.admitted_s = requests.first_token_s = requests.finished_s = np.nan
    return requests


def _state(settings: EngineSettings, groups: KvGroups, cost: StepCost, size: int) -> Records:
    state = np.zeros(1, dtype=STATE).view(np.recarray)
    state.blocks = state.free = settings.usable_blocks
    state.max_num_batched_tokens = settings.max_num_batched_tokens
    state.overlapped = settings.async_scheduling
    state.reserve_full_prompt = settings.reserve_full_prompt
    state.front = NONE
    state.unhashed_last = settings.unhashed_last
    state.draft_tokens, state.drops = settings.ahead_tokens.prefilling, settings.drops_blocks
    interval, alignment = groups.retention_tokens, math.lcm(groups.alignment_tokens, size)
    state.block_size = size
    state.hybrid = len(groups.groups) > 1 or groups.groups[0].kind != "full"
    state.alignment_tokens = math.lcm(groups.hit_tokens, size)
    state.segment_tokens = alignment if interval is None else interval
    state.keeps_boundaries = interval is not None
    state.state_tokens, state.export_tokens = groups.state_tokens, groups.export_tokens
    hashed = [max(groups.hit_tokens, groups.state_tokens)]
    if settings.drops_blocks:  # a drafter's window is hashed behind a hit's end, too
        hashed += [each.block_tokens for each in groups.groups if groups.shares_drafts(each)]
    state.hash_tokens = math.lcm(min(hashed), size)
    within = hits_within_blocks(settings)
    rehashes = settings.rehashes_states and not within and groups.state_tokens > 0
    state.rehashes_states, state.hashes_always = rehashes, within or rehashes
    for name in cost.__struct_fields__:
        value = getattr(cost, name)
        state[name] = cost.base_s if value is None else value  # decode_base_s
    return state
