"""vLLM's whole scheduler, 16 requests in flight: the model takes the same steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvscope.policies.lru import Lru
from kvscope.simulate.engine.settings import EngineSettings
from tests.conformance.conversations import Asked, Mix, conversations
from tests.conformance.kvscope_side import Model
from tests.conformance.vllm_side import VllmScheduler

pytestmark = pytest.mark.engine

SLOTS = 16
MIXES = {
    "chats": Mix(gap=2.0),
    "rush": Mix(gap=0.3),
    "long prompts": Mix(head=300, turn=200, output=20, gap=1.5),
    "long outputs": Mix(turn=30, output=150, gap=6.0),
    "repeats": Mix(head=200, again=0.5, edited=0.2, silent=0.2, gap=2.0),
}


def both(
    folder: Path,
    asked: list[Asked],
    size: int,
    usable_blocks: int,
    *,
    overlapped: bool = False,
    tokens: int = 256,
    watermark: float = 0.0,
    reserve: bool = True,
) -> tuple[VllmScheduler, Model]:
    """The two sides, set alike."""
    vllm = VllmScheduler(
        folder,
        asked,
        size,
        usable_blocks,
        overlapped,
        max_num_seqs=SLOTS,
        max_num_batched_tokens=tokens,
        watermark=watermark,
        scheduler_reserve_full_isl=reserve,
    )
    settings = EngineSettings(
        usable_blocks,
        max_num_seqs=SLOTS,
        max_num_batched_tokens=tokens,
        async_scheduling=overlapped,
        watermark=watermark,
        reserve_full_prompt=reserve,
    )
    return vllm, Model(asked, size, Lru(), settings)


def free_blocks(vllm: VllmScheduler) -> list[tuple[int, bool]]:
    """(number from 0, whether it has a hash) of vLLM's free blocks, the next to be taken first."""
    queue = vllm.scheduler.kv_cache_manager.block_pool.free_block_queue
    return [(one.block_id - 1, one.block_hash is not None) for one in queue.get_all_free_blocks()]


def stepped(vllm: VllmScheduler, model: Model) -> dict[str, int]:
    """Step both to the end, comparing all the way; what was seen."""
    step, more = 0, True
    while more:
        more = vllm.step()
        assert model.step() == more, step
        assert [int(one.request_id) for one in vllm.scheduler.running] == model.running(), step
        if step % 5 == 0 or not more:
            mine = [(block, content > 0) for block, content in model.free_blocks()]
            assert free_blocks(vllm) == mine, step
        step += 1
    requests, numbers = model.machine.requests, range(len(vllm.asked))
    hits = requests.hits * model.machine.state[0].block_size
    preempted = [one.num_preemptions for one in vllm.requests]
    assert hits.tolist() == [vllm.hit_tokens[number] for number in numbers]
    assert int(hits.sum()) == vllm.counted_hits
    assert requests.preemptions.tolist() == preempted
    assert requests.first_token_s.tolist() == [vllm.first_token_s[number] for number in numbers]
    return {"hits": int(hits.sum()), "preemptions": sum(preempted)}


def fitting(requests: int, seed: int, mix: str, size: int, usable_blocks: int) -> list[Asked]:
    """Made traffic without those that an engine with so many blocks would turn away."""
    if mix == "long outputs":  # takes many steps a request
        requests //= 2
    asked = conversations(requests, seed, MIXES[mix])
    return [replace(one, parent=-1) for one in asked if one.blocks(size) < usable_blocks]


@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("usable_blocks", [80, 200, 600])
def test_every_step_agrees(tmp_path: Path, usable_blocks: int, mix: str, size: int) -> None:
    """600 requests: the same ones run in each step, and the same blocks are free, in order.

    And each request has the same hit tokens, preemptions and time of its first token, with prompts
    in chunks and, in small pools, preemption.
    """
    asked = fitting(600, usable_blocks + size, mix, size, usable_blocks)
    seen = stepped(*both(tmp_path, asked, size, usable_blocks))
    assert seen["hits"] > 0
    if usable_blocks == 80 and mix != "long prompts":
        assert seen["preemptions"] > 0


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("usable_blocks", [80, 300])
def test_every_overlapped_step_agrees(tmp_path: Path, usable_blocks: int, mix: str) -> None:
    """The same where each step is planned before the last one's tokens are known."""
    asked = fitting(600, usable_blocks, mix, 16, usable_blocks)
    seen = stepped(*both(tmp_path, asked, 16, usable_blocks, overlapped=True))
    assert seen["hits"] > 0
    if usable_blocks == 80 and mix != "long prompts":
        assert seen["preemptions"] > 0


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize(
    "settings",
    [{"tokens": 40}, {"tokens": 4096}, {"watermark": 0.1}, {"reserve": False, "tokens": 64}],
    ids=str,
)
def test_every_setting_agrees(tmp_path: Path, settings: dict[str, Any], overlapped: bool) -> None:
    """Small and large chunks, blocks held back, and prompts let in before all of them fits."""
    asked = fitting(400, len(settings), "chats", 16, 120)
    stepped(*both(tmp_path, asked, 16, 120, overlapped=overlapped, **settings))
