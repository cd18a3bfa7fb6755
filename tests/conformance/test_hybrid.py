"""Hybrid models in vLLM's cache manager and scheduler: the model does the same, block for block."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvscope.deployment.kv_groups import KvGroup, KvGroups
from kvscope.policies.lru import Lru
from kvscope.vllm_sim.settings import EngineSettings
from tests.conformance.contents import Contents
from tests.conformance.conversations import Mix, TokenRequest, conversations
from tests.conformance.kvscope_side import Model
from tests.conformance.stepping import both, stepped
from tests.conformance.vllm_side import manager, serve_alone, vllm_request
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


def linear(size: int = 16, *, exports: bool = False) -> KvGroup:
    """Return a group of linear attention, which may write two states a step."""
    return KvGroup("linear", size, exports=exports)


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
    "nemotron-h": (*[linear(exports=True)] * 2, full()),
    "exports and windows": (linear(32, exports=True), full(32), sliding(100, 32)),
}
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
    groups = KvGroups(LAYOUTS[layout])
    return replace(groups, retention_tokens=retention and retention * groups.alignment_tokens)


@pytest.mark.parametrize(("layout", "retention", "usable_blocks"), cases())
def test_hits_junctions_and_the_order_of_free_blocks_agree(
    layout: str, retention: int | None, usable_blocks: int
) -> None:
    """The same hits, junctions and, after every fourth of 240 requests, free blocks in order."""
    check_manager(layout, retention, usable_blocks)


@pytest.mark.parametrize(
    ("layout", "retention"),
    [("gpt-oss", 0), long("three sizes", None), long("chunks", 0), long("states and windows", 0)],
)
def test_smaller_hashes_leave_hits_as_they_are(layout: str, retention: int | None) -> None:
    """With `prefix_match_unit`, but where states are hit within blocks: those kvscope refuses."""
    groups = kv_groups(layout, retention)
    groups.check_match_unit(groups.hash_tokens // 2)
    check_manager(layout, retention, 150, units=2)


def check_manager(layout: str, retention: int | None, usable_blocks: int, units: int = 1) -> None:
    """Compare vLLM's manager and the model; of the least blocks, each has `units` hashes."""
    groups = kv_groups(layout, retention)
    size = groups.hash_tokens // units
    usable_blocks = usable_blocks * len(groups.groups) // 2
    trace = conversations(160, usable_blocks + len(layout), MIXES["chats"])
    trace += [replace(x, parent=-1) for x in conversations(80, len(layout), MIXES["repeats"])]
    cache = manager(usable_blocks, size, groups)
    model = Model(trace, size, Lru(), EngineSettings.one_at_a_time(usable_blocks, groups))
    requests, nodes = model.machine.requests, len(model.machine.nodes) // len(groups.groups)
    contents, hit_tokens, junctions = Contents(nodes), 0, 0
    for number, tokens in enumerate(trace):
        if requests.oversized[number]:
            continue
        request = vllm_request(number, tokens, size)
        hits = serve_alone(cache, request, tokens)
        model.finish(number + 1)
        assert hits == requests.hits[number] * size, number
        assert request.shared_prefix_boundary == requests.junction[number], number
        contents.learn(model, number, request)
        if number % 4 == 3:  # what is off once stays off; a queue takes as long as the requests
            assert contents.free_blocks(cache) == model.free_blocks(), number
        hit_tokens += hits
        junctions += requests.junction[number] > 0
    assert hit_tokens > 0
    kinds = {group.kind for group in groups.groups}
    assert junctions > 0 or retention != 0 or kinds not in ({"full", "sliding"}, {"full", "linear"})


STEPS = {  # retention and tokens a step
    "gpt-oss": (0, 64),
    "gemma": (0, 256),
    "two windows": (2, 96),
    "three sizes": (None, 64),
    "chunks and windows": (0, 96),
    "states": (0, 64),
    "qwen3-next": (0, 40),
    "states and windows": (None, 160),
    "nemotron-h": (0, 96),
    "exports and windows": (None, 160),
}


@pytest.mark.parametrize(
    ("layout", "overlapped"),
    [
        (layout, overlapped) if overlapped == (place % 2 > 0) else long(layout, overlapped)
        for place, layout in enumerate(STEPS)
        for overlapped in (False, True)
    ],
)
def test_every_step_agrees(tmp_path: Path, layout: str, overlapped: bool) -> None:
    """16 in flight, in chunks, with preemption: the same steps as vLLM's whole scheduler."""
    retention, tokens = STEPS[layout]
    groups = kv_groups(layout, retention)
    usable_blocks, size = 70 * attending(groups), groups.hash_tokens
    trace = [replace(x, parent=-1) for x in conversations(250, tokens, Mix(gap=1.0))]
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
    """Return the requests that full attention in all groups would still hold."""
    blocks = usable_blocks // attending(groups) - 6
    size = max(group.block_tokens for group in groups.groups)
    return [x for x in trace if x.blocks(size) < blocks]
