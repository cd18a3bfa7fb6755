"""All that an engine's steps read and write, as a few tables of records.

Kernels get these tables in one tuple. Records keep that tuple short: numba compiles and passes few
large arrays much faster than many small ones. Whole numbers have 64 bits, but for what grows with
the trie.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.policies.base import Floats
from kvscope.replay.structures.recent import nothing_recent
from kvscope.replay.traffic import Traffic
from kvscope.vllm_sim.paths import blocks_needed
from kvscope.vllm_sim.settings import EngineSettings, StepCost

NONE = -1
ROOT = 0  # as a content: none, the block has no hash
UNHASHED = 0  # the queue of free blocks without a hash; lane k is queue k + 1
PINNED = -1  # in no queue: a request uses it
PARKED = -2  # in no queue: free, but it has a cached child and the policy keeps such blocks

Records = np.recarray[Any, Any]


def _record(whole: str, real: str = "") -> np.dtype[Any]:
    return np.dtype(
        [(name, np.int64) for name in whole.split()] + [(n, float) for n in real.split()]
    )


BLOCK = _record("after before queue lane users content twin_after twin_before freed", "freed_s")
"""A block, or behind the last one the sentinel of a queue.

`after` and `before` make a ring of the queue that it is in. `content` is the node that its hash
stands for; blocks with the same content are a ring through `twin_after` and `twin_before`, oldest
first. `users` counts the requests that use it. `lane` is where it went when it was freed, `freed_s`
when and `freed` as the how manieth.
"""

NODE = np.dtype([("parent", np.int32), ("first", np.int32), ("children", np.int32)])
"""A node of the trie: the oldest block that holds it, and how many nodes right below it are held.

`children` is kept up only where the policy evicts leaves.
"""

REQUEST = _record(
    "prompt outputs leaf length look history_tokens category next_prompt_tokens oversized "
    "computed generated coming slot held hashed hits preemptions",
    "arrival_s let_in_s first_token_s finished_s",
)
"""What a request wants, and what it has got so far.

`prompt` and `outputs` are tokens wanted; `leaf` and `length` its path, of which the first look-up
may find `look` blocks. `computed` tokens have their KV or get it in a planned step; `generated`
outputs are known, `coming` ones will be after a planned step. It runs in `slot` (NONE: it waits or
is done) and holds `held` blocks there, of which `hashed` have their content. `hits` are the blocks
found when it was first let in, NONE until then. Times are seconds, nan for "not yet".
"""

STATE = _record(
    "blocks lanes block_size max_num_seqs max_num_batched_tokens overlapped reserve_full_prompt "
    "watermark_blocks free evictions freed running preempted next arrived front in_progress "
    "planned budget steps finished let_in period",
    "now_s end_s cost_s ttl_s "
    "base_s prefill_token_s prefill_pair_s decode_token_s decode_context_token_s",
)
"""One record: what the engine is set to, and counts.

`free` blocks now; `evictions`, `freed` blocks, `steps`, `finished` and `let_in` requests so far.
`running` requests run and `preempted` ones wait to start over; `next` is the first one that was
never let in, of the `arrived` ones. The path of `front` is written out. `in_progress` and `planned`
are the sizes of the two batches, `budget` the tokens that the latter may still get and `cost_s`
what it takes; `end_s` is when the former ends. `period` is the policy's table in force.
"""


class Machine(NamedTuple):
    """An engine with n blocks and S slots that serves R requests over a trie of N nodes.

    `blocks` (n and a sentinel for each queue), `nodes` (N + 1), `requests` (R) and `state` (1) are
    records as above. Row s of `table` lists the blocks of the request in slot s, row s of `path`
    the nodes it fills; row S of `path` belongs to the request that waits in front. `running` is in
    order of admission; `preempted` is a stack, and so are the free `slots`. Row 0 of `batch` lists
    the requests that the step in progress computes for, row 1 those of the planned one, and
    `yields` which of them get a token. `recent` are the uncached tokens of late requests, `p` the
    policy's parameters, `tables` what it has learned: row k holds from request `since[k]` on.
    """

    blocks: Records
    nodes: Records
    requests: Records
    state: Records
    table: NDArray[np.int64]
    path: NDArray[np.int32]
    running: NDArray[np.int64]
    preempted: NDArray[np.int64]
    slots: NDArray[np.int64]
    batch: NDArray[np.int64]
    yields: NDArray[np.bool_]
    recent: NDArray[np.int64]
    p: Floats
    tables: NDArray[np.float64]
    since: NDArray[np.int64]


def idle_machine(
    known: Traffic,
    settings: EngineSettings,
    cost: StepCost,
    lanes: int,
    p: Floats,
    tables: NDArray[np.float64],
    since: NDArray[np.int64],
    ttl_s: float,
) -> Machine:
    """An engine that waits for its first request; all its blocks are free and empty."""
    requests = _requests(known, settings.usable_blocks)
    slots = min(settings.max_num_seqs, max(len(requests), 1))
    longest = int(blocks_needed(known)[requests.oversized == 0].max(initial=1))
    nodes = np.zeros(len(known.block_parent), dtype=NODE).view(np.recarray)
    nodes.parent, nodes.first = known.block_parent, NONE
    return Machine(
        blocks=_blocks(settings.usable_blocks, lanes),
        nodes=nodes,
        requests=requests,
        state=_state(settings, cost, slots, lanes, known.block_size, ttl_s),
        table=np.empty((slots, longest), dtype=np.int64),
        path=np.empty((slots + 1, longest), dtype=np.int32),
        running=np.empty(slots, dtype=np.int64),
        preempted=np.empty(slots, dtype=np.int64),
        slots=np.arange(slots)[::-1].copy(),
        batch=np.empty((2, slots), dtype=np.int64),
        yields=np.empty((2, slots), dtype=np.bool_),
        recent=nothing_recent(),
        p=p,
        tables=tables,
        since=since,
    )


def _blocks(usable: int, lanes: int) -> Records:
    """All blocks in the queue of those without a hash, in their order; the lanes are empty."""
    blocks = np.zeros(usable + lanes + 1, dtype=BLOCK).view(np.recarray)
    ring = np.arange(len(blocks))
    unhashed = np.roll(ring[: usable + 1], 1)  # from the sentinel on
    for name in ("after", "before", "twin_after", "twin_before"):
        blocks[name] = ring
    blocks.after[unhashed] = np.roll(unhashed, -1)
    blocks.before[unhashed] = np.roll(unhashed, 1)
    return blocks


def _requests(known: Traffic, usable: int) -> Records:
    """Nothing has begun; requests that fill more than all blocks are marked as oversized."""
    requests = np.zeros(len(known.leaf), dtype=REQUEST).view(np.recarray)
    requests.prompt = known.input_tokens
    requests.outputs = np.maximum(known.history_tokens - known.input_tokens, 1)
    requests.oversized = blocks_needed(known) > usable
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
    requests.slot = requests.hits = NONE
    requests.let_in_s = requests.first_token_s = requests.finished_s = np.nan
    return requests


def _state(
    settings: EngineSettings, cost: StepCost, slots: int, lanes: int, size: int, ttl_s: float
) -> Records:
    state = np.zeros(1, dtype=STATE).view(np.recarray)
    state.blocks = state.free = settings.usable_blocks
    state.lanes, state.block_size, state.max_num_seqs = lanes, size, slots
    state.max_num_batched_tokens = settings.max_num_batched_tokens
    state.overlapped = settings.async_scheduling
    state.reserve_full_prompt = settings.reserve_full_prompt
    state.watermark_blocks = settings.watermark_blocks
    state.front, state.ttl_s = NONE, ttl_s
    for name in (
        "base_s",
        "prefill_token_s",
        "prefill_pair_s",
        "decode_token_s",
        "decode_context_token_s",
    ):
        state[name] = getattr(cost, name)
    return state
