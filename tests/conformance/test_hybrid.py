"""Hybrid models in vLLM's cache manager and scheduler: the model does the same, block for block."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kvscope.deployment.kv_groups import KvGroup, KvGroups
from kvscope.policies.lru import Lru
from kvscope.vllm_sim.settings import EngineSettings
from tests.conformance.contents import compared
from tests.conformance.conversations import Mix, TokenRequest, conversations
from tests.conformance.kvscope_side import Model
from tests.conformance.stepping import both, stepped
from tests.conformance.vllm_side import manager
from tests.long import long

pytestmark = pytest.mark.engine


def full(size: int = 16) -> KvGroup:
    """Return a group of full attention."""
    return KvGroup("full", size)


def sliding(window: int, size: int = 16) -> KvGroup:
    """Return a group that looks `window` tokens back."""
    return KvGroup("sliding", size, window)


def chunked(chunk: int, size: int = 16) -> KvGroup:
    """Return a group that looks back to the start of its chunk."""
    return KvGroup("chunked", size, chunk)


def linear(size: int = 16, *, exports: int = 0) -> KvGroup:
    """Return a group of linear attention, which may write two states a step."""
    return KvGroup("linear", size, export_tokens=exports)


LAYOUTS = {
    "gpt-oss": (full(), sliding(128)),
    "gemma": (full(), *[sliding(64)] * 5),
    "short window": (full(), sliding(20)),
    "two windows": (full(), sliding(40), sliding(200)),
    "window first": (sliding(100), full(), full()),
    "larger full blocks": (full(32), sliding(64)),
    "larger window blocks": (full(), sliding(100, 64)),
    "three sizes": (full(16), sliding(40, 32), sliding(90, 48)),
    "windows only": (sliding(64),),
    "two kinds of windows": (sliding(64), sliding(160)),
    "chunks": (full(), chunked(64)),
    "chunks and windows": (full(), chunked(96), sliding(50)),
    "states": (full(), linear()),
    "qwen3-next": (*[linear(48)] * 3, full(48)),
    "states and windows": (linear(), full(), sliding(100)),
    "states only": (linear(32),),
    "nemotron-h": (*[linear(exports=1)] * 2, full()),
    "exports and windows": (linear(32, exports=1), full(32), sliding(100, 32)),
}


WIDE = {  # for hits within blocks
    "qwen3-next": LAYOUTS["qwen3-next"],
    "wide states": (linear(64), full(64)),
    "wide exports": (full(64), *[linear(64, exports=1)] * 2),
    "aligned exports": (linear(96, exports=32), full(96), full(96)),
}


def groups_of(layout: str) -> KvGroups:
    """Return groups with vLLM's default retention."""
    return KvGroups((LAYOUTS | WIDE)[layout])


RETENTION = (0, None, 2)  # in multiples of the alignment
MIXES = {  # outputs are short: each of their tokens is a step of vLLM's slow side
    "chats": Mix(head=150, turn=60, output=20, heads=3, salts=1),
    "repeats": Mix(head=200, turn=40, output=12, again=0.3, edited=0.3, silent=0.2, salts=1),
}
CASES = [
    (layout, retention)
    for layout, groups in LAYOUTS.items()
    for retention in RETENTION
    if not retention or any(group.kind in {"sliding", "linear"} for group in groups)
]
POOLS = (130, 600, 60, 250)
"""Usable blocks for two groups. Each case runs in one of the first two, in all with test-long."""


def cases() -> list[Any]:
    """Return all cases in all pools, `long` but for one pool each."""
    return [
        (*case, pool) if place % 2 == number else long(*case, pool)
        for place, case in enumerate(CASES)
        for number, pool in enumerate(POOLS)
    ]


def kv_groups(layout: str, retention: int | None) -> KvGroups:
    """Return groups with a retention of so many aligned blocks."""
    groups = groups_of(layout)
    return replace(groups, retention_tokens=retention and retention * groups.alignment_tokens)


@pytest.mark.parametrize(("layout", "retention", "usable_blocks"), cases())
def test_hits_junctions_and_the_order_of_free_blocks_agree(
    layout: str, retention: int | None, usable_blocks: int
) -> None:
    """The same hits, junctions and, after every fourth request, free blocks in order."""
    check_manager(layout, retention, usable_blocks)


@pytest.mark.parametrize(
    ("layout", "retention"),
    [("gpt-oss", 0), long("three sizes", None), long("chunks", 0), long("states and windows", 0)],
)
def test_smaller_hashes_leave_hits_as_they_are(layout: str, retention: int | None) -> None:
    """With `prefix_match_unit`, but where states are hit within blocks: those kvscope refuses."""
    groups = kv_groups(layout, retention)
    assert groups.matching(groups.block_tokens // 2).hit_tokens == groups.alignment_tokens
    check_manager(layout, retention, 150, units=2)


@pytest.mark.parametrize(
    ("layout", "retention", "units", "usable_blocks"),
    [
        case if case == ("wide exports", 0, 4, 60) else long(*case)
        for case in product(WIDE, RETENTION, (2, 3, 4, 6), (40, 60, 130, 300))
        if groups_of(case[0]).block_tokens % case[2] == 0
    ],
)
def test_hits_within_blocks(
    layout: str, retention: int | None, units: int, usable_blocks: int
) -> None:
    """With `prefix_match_unit` below the blocks of states: hits at the ends of prompts, copies."""
    check_manager(layout, retention, usable_blocks, units)


def matching(groups: KvGroups, units: int) -> KvGroups:
    """Return the groups with so many hashes for each of the least blocks."""
    return groups.matching(groups.block_tokens // units if units > 1 else None)


def check_manager(layout: str, retention: int | None, usable_blocks: int, units: int = 1) -> None:
    """Compare vLLM's manager and the model; of the least blocks, each has `units` hashes."""
    groups = matching(kv_groups(layout, retention), units)
    size = groups.block_tokens // units
    usable_blocks = usable_blocks * len(groups.groups) // 2
    trace = conversations(100, usable_blocks + len(layout), MIXES["chats"])
    trace += [replace(x, parent=-1) for x in conversations(50, len(layout), MIXES["repeats"])]
    cache = manager(usable_blocks, size, groups)
    model = Model(trace, size, Lru(), EngineSettings.one_at_a_time(usable_blocks, groups))
    hits = compared(trace, size, cache, model, every=4, junctions=True)
    within = any(tokens % groups.alignment_tokens for tokens in hits)
    assert within == (groups.hit_tokens < groups.alignment_tokens)
    kinds = {group.kind for group in groups.groups}
    junctions = model.machine.requests.junction.any()
    assert junctions or retention != 0 or kinds not in ({"full", "sliding"}, {"full", "linear"})


COMPRESSED = (full(64), *[sliding(40)] * 2, sliding(8, 4), sliding(32, 8))
"""As of DeepSeek-V4: entries of many tokens, windows, and states of tokens to be compressed."""


def told_apart(request: TokenRequest, size: int) -> TokenRequest:
    """Return a request whose blocks of `size` tokens differ from their second token on.

    Else vLLM may hit a block of a prompt that goes on differently within a block of the trace. All
    begin alike, as a hash may cover the token behind a block.
    """
    tokens = [*request.prompt, *request.output]
    for at in range(0, len(tokens), size):
        tokens[at : at + 2] = [0, hash(tuple(tokens[at : at + size])) % (1 << 30)][
            : len(tokens) - at
        ]
    prompt = len(request.prompt)
    return replace(request, prompt=tuple(tokens[:prompt]), output=tuple(tokens[prompt:]))


@pytest.mark.parametrize("retention", [0, long(None), 2])
@pytest.mark.parametrize(("size", "usable_blocks"), [(16, 900), long(4, 500), long(32, 700)])
def test_windows_in_smaller_blocks_than_the_trace(
    retention: int | None, size: int, usable_blocks: int
) -> None:
    """Compressed attention: states of 4 and 8 tokens, and windows, beside blocks of 64 tokens."""
    groups = KvGroups(COMPRESSED)
    groups = replace(groups, retention_tokens=retention and retention * groups.alignment_tokens)
    trace = conversations(160, size, MIXES["chats"])
    trace += [replace(x, parent=-1) for x in conversations(80, 7, MIXES["repeats"])]
    trace = [told_apart(x, size) for x in trace]
    model = Model(trace, size, Lru(), EngineSettings.one_at_a_time(usable_blocks, groups))
    cache, hashes = manager(usable_blocks, 4, groups), size // 4
    compared(trace, size, cache, model, every=4, junctions=True, hashes=hashes)
    assert model.machine.state[0].evictions > 0


STEPS = {  # retention, tokens a step, hashes of the least block
    "gpt-oss": (0, 64, 1),
    "gemma": (0, 256, 1),
    "two windows": (2, 96, 1),
    "three sizes": (None, 64, 1),
    "chunks and windows": (0, 96, 1),
    "states": (0, 64, 1),
    "qwen3-next": (0, 40, 1),
    "states and windows": (None, 160, 1),
    "nemotron-h": (0, 96, 1),
    "exports and windows": (None, 160, 1),
    "wide states": (0, 96, 4),
    "wide exports": (2, 200, 4),
    "aligned exports": (None, 150, 6),
}


@pytest.mark.parametrize(
    ("layout", "overlapped"),
    [
        (layout, overlapped)
        if overlapped == (place % 2 > 0) and layout not in {"wide exports", "aligned exports"}
        else long(layout, overlapped)
        for place, layout in enumerate(STEPS)
        for overlapped in (False, True)
    ],
)
def test_every_step_agrees(tmp_path: Path, layout: str, overlapped: bool) -> None:
    """16 in flight, in chunks, with preemption: the same steps as vLLM's whole scheduler."""
    retention, tokens, units = STEPS[layout]
    groups = matching(kv_groups(layout, retention), units)
    blocks = 30 if layout == "aligned exports" else 70  # few enough for preemptions
    usable_blocks, size = blocks * attending(groups), groups.block_tokens // units
    trace = [replace(x, parent=-1) for x in conversations(150, tokens, Mix(gap=1.0))]
    trace = fitting(trace, groups, usable_blocks)
    counts = stepped(
        *both(
            tmp_path,
            trace,
            size,
            usable_blocks,
            overlapped=overlapped,
            tokens=tokens,
            groups=groups,
        )
    )
    assert counts["hits"] > 0
    assert counts["preemptions"] > 0


def attending(groups: KvGroups) -> int:
    """Return the number of groups that hold more than a few states of a request."""
    return sum(group.kind != "linear" for group in groups.groups)


def fitting(trace: list[TokenRequest], groups: KvGroups, usable_blocks: int) -> list[TokenRequest]:
    """Return the requests that full attention in all groups would still hold, beside states."""
    states = len(groups.groups) - attending(groups)
    blocks = usable_blocks // attending(groups) - max(6, 4 * states)
    size = max(group.block_tokens for group in groups.groups)
    return [x for x in trace if x.blocks(size) < blocks]
