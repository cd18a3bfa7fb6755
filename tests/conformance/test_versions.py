"""Cache managers of earlier vLLMs: the simulator does what each version did, request by request.

Their Python code runs on 0.32's compiled parts (`make test-engine-versions`); the installed vLLM is
compared in the same way.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvscope.deployment.engines import (
    COMPARED,
    JUNCTIONS,
    STATES_COMPARED,
    THIN_RETENTION,
    parse_engine,
)
from kvscope.deployment.kv_groups import KvGroups
from kvscope.deployment.speculative import Drafter
from kvscope.policies.lru import Lru
from kvscope.vllm_sim.settings import EngineSettings
from tests.conformance import test_cache_manager, test_hybrid
from tests.conformance.contents import compared
from tests.conformance.conversations import TokenRequest, conversations
from tests.conformance.kvscope_side import Model
from tests.conformance.vllm_side import VLLM_VERSION, manager
from tests.long import long

pytestmark = pytest.mark.engine

ENGINE = parse_engine(f"vllm@{VLLM_VERSION}")
LAYOUTS = ("gpt-oss", "gemma", "two windows", "chunks", "chunks and windows")
STATES = ("states", "qwen3-next", "states and windows")
IN_CI = ("two windows", "chunks and windows", "qwen3-next")
"""Of the installed vLLM, tests of its own have all others."""
MIXES = [mix if mix in {"chats", "repeats"} else long(mix) for mix in test_cache_manager.MIXES]
RETENTION = {"default": ENGINE.retaining}
if ENGINE.has(JUNCTIONS):
    RETENTION["thin"] = lambda groups: groups
    RETENTION["all"] = lambda groups: replace(groups, retention_tokens=None)


def served(
    trace: list[TokenRequest],
    size: int,
    usable_blocks: int,
    groups: KvGroups | None = None,
    drafts: int = 0,
) -> int:
    """Return the number of requests that were compared with the version's cache manager.

    A drafter proposes `drafts` tokens a step.
    """
    cache = manager(usable_blocks, size, groups, drafts)
    engine = replace(ENGINE, drafter=Drafter("mtp", drafts) if drafts else None)
    settings = EngineSettings.one_at_a_time(usable_blocks, groups).in_version(engine)
    model = Model(trace, size, Lru(), settings)
    return len(compared(trace, size, cache, model, every=8, drafts=drafts))


def test_the_version_was_compared() -> None:
    """The table names it, so that no warning is printed for it."""
    assert ENGINE.version in COMPARED
    assert ENGINE.doubts(None) == ()


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("usable_blocks", [60, long(24), long(150), long(600)])
def test_full_attention(usable_blocks: int, mix: str) -> None:
    """600 requests: the same hits, and the same free blocks in the same order."""
    trace = conversations(600, usable_blocks, test_cache_manager.MIXES[mix])
    assert served(trace, 16, usable_blocks) > 400


@pytest.mark.parametrize("mix", MIXES)
def test_drafters(mix: str) -> None:
    """600 requests: the last block of a hit is computed again before 0.33, and not since then."""
    trace = conversations(600, 2, test_cache_manager.MIXES[mix])
    assert served(trace, 16, 150, drafts=2) > 400


@pytest.mark.parametrize("retention", RETENTION)
@pytest.mark.parametrize(
    ("layout", "usable_blocks"),
    [
        (layout, pool) if pool == 130 and layout in IN_CI else long(layout, pool)
        for layout in (*LAYOUTS, *(STATES if ENGINE.version >= STATES_COMPARED else ()))
        for pool in (60, 130, 300)
    ],
)
def test_groups(layout: str, usable_blocks: int, retention: str) -> None:
    """240 requests of hybrid models, with the version's own retention and, from 0.26 on, others."""
    groups = test_hybrid.groups_of(layout)
    if retention != "default" and not groups.sparse:
        pytest.skip("nothing is thinned out")
    groups = RETENTION[retention](groups)
    usable_blocks = usable_blocks * len(groups.groups) // 2
    trace = conversations(160, usable_blocks, test_hybrid.MIXES["chats"])
    repeats = conversations(80, len(layout), test_hybrid.MIXES["repeats"])
    trace += [replace(each, parent=-1) for each in repeats]
    assert served(trace, groups.block_tokens, usable_blocks, groups) > 100


def test_the_default_differs_where_the_table_says_so() -> None:
    """Before 0.29 all windows are kept."""
    groups = ENGINE.retaining(test_hybrid.groups_of("gpt-oss"))
    assert (groups.retention_tokens == 0) == ENGINE.has(THIN_RETENTION)
