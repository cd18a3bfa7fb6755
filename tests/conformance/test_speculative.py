"""vLLM with a drafter whose tokens are all rejected: the model does the same, block for block."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.deployment.kv_groups import KvGroup, KvGroups
from kvscope.deployment.speculative import Drafter
from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.vllm_sim.settings import EngineSettings
from tests.conformance.contents import compared
from tests.conformance.conversations import Mix, TokenRequest, conversations
from tests.conformance.kvscope_side import Model
from tests.conformance.stepping import MIXES, SLOTS, fitting, stepped
from tests.conformance.test_hybrid import COMPRESSED, full, kv_groups, linear, sliding, told_apart
from tests.conformance.test_hybrid import MIXES as SHORT_OUTPUTS
from tests.conformance.test_hybrid import fitting as fitting_groups
from tests.conformance.vllm_side import DROPS_BLOCKS, REHASHES_STATES, Batch, VllmScheduler, manager
from tests.long import long

pytestmark = pytest.mark.engine

SIZE = 16
LAYOUTS = ("states", "qwen3-next", "nemotron-h")
WINDOWS = ("gpt-oss", "gemma", "short window", "two windows", "window first")


class Drafting(VllmScheduler):
    """vLLM's scheduler, whose drafter proposes tokens after each token that a request gets."""

    def _complete(self, batch: Batch, transfers: object = None) -> None:
        super()._complete(batch)
        if self.overlapped:  # drafts are placeholders then
            return
        from vllm.v1.outputs import DraftTokenIds

        names = [name for name, yields in batch.yields.items() if yields]
        drafts = [[-2] * self.scheduler.num_spec_tokens for _ in names]
        self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))


def speculative_config(tokens: int) -> SimpleNamespace:
    """Return what vLLM's scheduler reads of the configuration of MTP."""
    return SimpleNamespace(
        num_speculative_tokens=tokens,
        num_speculative_tokens_per_batch_size=None,
        max_num_new_slots_for_drafting=0,
        disable_padded_drafter_batch=False,
        method="mtp",
        use_eagle=lambda: True,
        use_eagle_block_drop=lambda: True,
        needs_eagle_block_drop=lambda: True,
        disable_eagle_block_drop=False,
        disable_lookahead_block_hashes=False,
        use_dflash=lambda: False,
        use_dspark=lambda: False,
        use_multi_module_mtp=lambda: False,
        uses_draft_model=lambda: False,
        uses_dynamic_speculative_decoding=lambda: False,
    )


def both(
    folder: Path,
    trace: list[TokenRequest],
    settings: EngineSettings,
    size: int = SIZE,
    policy: Any = None,
) -> tuple[VllmScheduler, Model]:
    """Return both sides with a drafter."""
    assert settings.drafter is not None
    vllm = Drafting(
        folder,
        trace,
        size,
        settings.usable_blocks,
        settings.async_scheduling,
        policy=policy,
        groups=settings.groups,
        speculative=speculative_config(settings.drafter.tokens),
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
    )
    return vllm, Model(trace, size, policy or Lru(), settings)


def drafting(usable_blocks: int, tokens: int, *, overlapped: bool = False) -> EngineSettings:
    """Return the settings of an engine that drafts so many tokens a step."""
    return EngineSettings(
        usable_blocks,
        max_num_seqs=SLOTS,
        max_num_batched_tokens=256,
        async_scheduling=overlapped,
        drafter=Drafter("mtp", tokens),
        drops_blocks=DROPS_BLOCKS,
    )


@pytest.mark.parametrize(
    ("mix", "tokens", "overlapped", "usable_blocks"),
    [
        case if case in {("rush", 4, False, 80), ("repeats", 1, True, 80)} else long(*case)
        for mix in MIXES
        for tokens in (1, 4)
        for overlapped in (False, True)
        for case in [(mix, tokens, overlapped, 80), (mix, tokens, overlapped, 300)]
    ],
)
def test_every_step_agrees(
    tmp_path: Path, mix: str, tokens: int, overlapped: bool, usable_blocks: int
) -> None:
    """The same requests run in each step and hit as much, and the same blocks are free."""
    settings = drafting(usable_blocks, tokens, overlapped=overlapped)
    most = usable_blocks - -(-settings.ahead_tokens.decoding // SIZE)
    trace = fitting(200, usable_blocks + tokens, mix, SIZE, most)
    assert stepped(*both(tmp_path, trace, settings))["hits"] > 0


def test_policies_agree(tmp_path: Path) -> None:
    """Also where kvscope's plugin orders the blocks."""
    trace = fitting(200, 80, "chats", SIZE, 79)
    policy = TLru({"xi_tokens": 500.0, "next_prompt_tokens": 100.0})
    stepped(*both(tmp_path, trace, drafting(80, 2), policy=policy))


IN_CI = {
    ("qwen3-next", 0, 3, 130),
    ("nemotron-h", 2, 1, 130),
    ("gpt-oss", 0, 3, 130),
    ("two windows", 2, 1, 130),
}


@pytest.mark.parametrize(
    ("layout", "retention", "tokens", "usable_blocks"),
    [
        case if case in IN_CI else long(*case)
        for layout in (*LAYOUTS, *WINDOWS)
        for retention in (0, None, 2)
        for tokens in (1, 3)
        for case in [(layout, retention, tokens, 130), (layout, retention, tokens, 600)]
    ],
)
def test_groups_agree(layout: str, retention: int | None, tokens: int, usable_blocks: int) -> None:
    """States, and windows: the same hits, junctions and free blocks in order, one at a time."""
    groups = kv_groups(layout, retention)
    usable_blocks, size = usable_blocks * len(groups.groups) // 2, groups.block_tokens
    trace = conversations(160, usable_blocks + len(layout), SHORT_OUTPUTS["chats"])
    trace += [replace(x, parent=-1) for x in conversations(80, tokens, SHORT_OUTPUTS["repeats"])]
    alone = EngineSettings.one_at_a_time(usable_blocks, groups)
    settings = replace(
        alone,
        drafter=Drafter("mtp", tokens, block_tokens=size),
        drops_blocks=DROPS_BLOCKS,
        rehashes_states=REHASHES_STATES,
    )
    cache, model = manager(usable_blocks, size, groups, tokens), Model(trace, size, Lru(), settings)
    compared(trace, size, cache, model, every=4, junctions=True, drafts=tokens)


@pytest.mark.parametrize(
    ("retention", "tokens", "size", "usable_blocks"),
    [
        case if case == (0, 1, 16, 900) else long(*case)
        for retention in (0, None, 128)
        for tokens in (1, 3)
        for case in [(retention, tokens, 16, 900), (retention, tokens, 4, 500)]
    ],
)
def test_compressed_attention_agrees(
    retention: int | None, tokens: int, size: int, usable_blocks: int
) -> None:
    """DeepSeek-V4's MTP: drafts in the groups of windows, whose blocks are smaller."""
    groups = KvGroups(COMPRESSED, retention)
    trace = conversations(160, size, SHORT_OUTPUTS["chats"])
    trace += [replace(x, parent=-1) for x in conversations(80, tokens, SHORT_OUTPUTS["repeats"])]
    trace = [told_apart(x, size) for x in trace]
    alone = EngineSettings.one_at_a_time(usable_blocks, groups)
    drafter = Drafter("mtp", tokens, block_tokens=16)
    settings = replace(alone, drafter=drafter, drops_blocks=DROPS_BLOCKS)
    cache, model = manager(usable_blocks, 4, groups, tokens), Model(trace, size, Lru(), settings)
    hashes = size // 4
    compared(trace, size, cache, model, every=4, junctions=True, drafts=tokens, hashes=hashes)
    assert model.machine.state[0].evictions > 0


STEPS_IN_CI = {("qwen3-next", 2, True), ("nemotron-h", 1, False), ("gpt-oss", 2, True)}


@pytest.mark.parametrize(
    ("layout", "tokens", "overlapped"),
    [
        case if case in STEPS_IN_CI else long(*case)
        for layout in (*LAYOUTS, *WINDOWS)
        for tokens in (1, 2)
        for case in [(layout, tokens, False), (layout, tokens, True)]
    ],
)
def test_every_step_agrees_on_groups(
    tmp_path: Path, layout: str, tokens: int, overlapped: bool
) -> None:
    """16 in flight, in chunks, with preemption: the same steps as vLLM's whole scheduler."""
    groups = kv_groups(layout, 0)
    usable_blocks, size = 110 if groups.state_tokens else 300, groups.block_tokens
    settings = replace(
        drafting(usable_blocks, tokens, overlapped=overlapped),
        groups=groups,
        rehashes_states=REHASHES_STATES,
    )
    trace = [replace(x, parent=-1) for x in conversations(150, tokens, Mix(gap=1.0))]
    trace = fitting_groups(trace, groups, usable_blocks - 10)
    counts = stepped(*both(tmp_path, trace, settings, size))
    assert counts["hits"] > 0


@pytest.mark.parametrize(
    "groups", [(full(), sliding(64), linear()), (sliding(64),), (full(), sliding(64, 32))]
)
def test_other_groups_are_refused(groups: tuple[KvGroup, ...]) -> None:
    """A drafter beside states and windows, windows alone, or blocks of two sizes."""
    with pytest.raises(UsageError, match="not simulated"):
        replace(drafting(80, 1), groups=KvGroups(groups))
