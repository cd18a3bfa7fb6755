"""Hybrid models above vLLM's CPU tier: the model does the same, chunk for chunk, in every group.

`make test-engine` runs these with vLLM 0.32, `make test-engine-0.33` with the Python of 0.33.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kvscope.deployment.kv_groups import KvGroups
from kvscope.vllm_sim.settings import OffloadSettings
from tests.conformance.conversations import conversations
from tests.conformance.offloading import MIXES, SLOW, stepped
from tests.conformance.test_hybrid import LAYOUTS as HYBRID
from tests.conformance.test_hybrid import attending, fitting, kv_groups
from tests.long import long

pytestmark = pytest.mark.engine

LAYOUTS = (
    "gpt-oss",
    "gemma",
    "short window",
    "two windows",
    "window first",
    "larger full blocks",
    "larger window blocks",
    "three sizes",
    "windows only",
    "two kinds of windows",
    "chunks",
    "chunks and windows",
    "states",
    "qwen3-next",
    "states and windows",
    "nemotron-h",
    "exports and windows",
)
TIERS: dict[str, dict[str, Any]] = {
    "lru": {"capacity_chunks": 150},
    "arc, outputs": {
        "capacity_chunks": 150,
        "eviction_policy": "arc",
        "prompt_only": False,
    },
    "chunks of 3": {"capacity_chunks": 60, "blocks_per_chunk": 3, "prompt_only": False},
    "threshold": {"capacity_chunks": 30, "store_threshold": 2},
    "tiny": {"capacity_chunks": 12, "prompt_only": False},
}


def run(
    folder: Path,
    layout: str,
    retention: int | None,
    tier: str,
    mix: str = "chats",
    *,
    requests: int = 250,
    tokens: int = 128,
    slow: bool = True,
    seed: int = 0,
    compiled: bool = True,
) -> dict[str, int]:
    """Step both sides with a layout of groups and a tier, in a pool small enough for evictions."""
    options = dict(TIERS[tier])
    groups = kv_groups(layout, retention)
    options["capacity_chunks"] *= attending(groups)
    groups = in_chunks(groups, options.get("blocks_per_chunk", 1))
    usable_blocks = 60 * attending(groups)
    trace = [replace(x, parent=-1) for x in conversations(requests, tokens + seed, MIXES[mix])]
    offload = OffloadSettings(**options, **(SLOW if slow else {}))
    return stepped(
        folder,
        fitting(trace, groups, usable_blocks),
        usable_blocks,
        offload,
        tokens=tokens,
        size=groups.block_tokens,
        groups=groups,
        compiled=compiled,
    )


def in_chunks(groups: KvGroups, blocks_per_chunk: int) -> KvGroups:
    """Return the groups with a retention interval that vLLM's tier takes."""
    if not groups.retention_tokens:
        return groups
    return replace(groups, retention_tokens=groups.retention_tokens * blocks_per_chunk)


CASES = [
    (layout, retention, tier)
    for layout in LAYOUTS
    for retention in (0, None, 2)
    for tier in TIERS
    if not (retention and {group.kind for group in HYBRID[layout]} == {"full", "chunked"})
]


@pytest.mark.parametrize(
    ("layout", "retention", "tier"),
    [
        ("gpt-oss", 0, "lru"),
        ("three sizes", None, "chunks of 3"),
        ("qwen3-next", 0, "arc, outputs"),
        ("states and windows", None, "tiny"),
    ],
)
def test_every_step_agrees(tmp_path: Path, layout: str, retention: int | None, tier: str) -> None:
    """16 in flight: the same requests run and chunks are held, in the same order, each step.

    And each request has the same hits on the GPU, tokens loaded, and time of its first token. The
    plain functions: machine code takes longer to make here than they take.
    """
    counts = run(tmp_path, layout, retention, tier, requests=70, compiled=False)
    assert counts["loaded"] > 0 or tier == "tiny"
    assert counts["evictions"] > 0


@pytest.mark.parametrize(("layout", "retention", "tier"), [long(*case) for case in CASES])
def test_every_layout_agrees(tmp_path: Path, layout: str, retention: int | None, tier: str) -> None:
    """The same in machine code, with all groups, retention intervals and tiers."""
    counts = run(tmp_path, layout, retention, tier)
    assert counts["loaded"] > 0 or tier == "tiny"
    assert counts["evictions"] > 0


@pytest.mark.parametrize("slow", [long(True), long(False)])
@pytest.mark.parametrize("mix", [long(mix) for mix in MIXES])
@pytest.mark.parametrize(
    "layout", [long("gpt-oss"), long("larger window blocks"), long("qwen3-next")]
)
def test_every_mix_agrees(tmp_path: Path, layout: str, mix: str, *, slow: bool) -> None:
    """The same for other traffic, with copies that take time and such that take none."""
    assert run(tmp_path, layout, 0, "arc, outputs", mix, slow=slow)["loaded"] > 0
