"""vLLM's scheduler and kvscope's model of it, set alike and stepped together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvscope.learning.learners import FittedTable
from kvscope.policies.base import LanePolicy
from kvscope.policies.lru import Lru
from kvscope.replay.replay import NO_TABLES, Tables
from kvscope.vllm_plugin.free_blocks import FreeBlocks
from kvscope.vllm_sim.settings import EngineSettings
from tests.conformance.conversations import Asked, Mix, conversations
from tests.conformance.kvscope_side import Model
from tests.conformance.vllm_side import VllmScheduler

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
    policy: LanePolicy | None = None,
    kinds: Sequence[str] | None = None,
    tables: Tables = NO_TABLES,
    fitted: FittedTable | None = None,
) -> tuple[VllmScheduler, Model]:
    """The two sides, set alike; with a `policy` kvscope's plugin steers vLLM's.

    `kinds` are the requests' types, as many as `tables` has categories. `fitted` is a table that
    the plugin's file brings; requests are then of the class that `classed` says.
    """
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
        policy=policy,
        kinds=kinds,
        fitted=fitted,
    )
    if fitted is None and tables is not NO_TABLES:
        vllm.steering.use(tables.values[0])
        vllm.steering.learner._estimator._refit_s = 1e9
    settings = EngineSettings(
        usable_blocks,
        max_num_seqs=SLOTS,
        max_num_batched_tokens=tokens,
        async_scheduling=overlapped,
        watermark=watermark,
        reserve_full_prompt=reserve,
    )
    model = Model(asked, size, policy or Lru(), settings, kinds, tables)
    if fitted is not None:
        classed(vllm, model)
    return vllm, model


def classed(vllm: VllmScheduler, model: Model) -> None:
    """Tell the model the class of each request as the plugin knows it at the time, and the table.

    The simulator knows from the start how long outputs become, and sees what a request in flight
    leaves behind as if it had ended when it came; an engine does not. So its guard may choose later
    than the simulator's.
    """
    learner, category = vllm.steering.learner, vllm.steering.learner.category

    def told(request: Any, of: Any) -> int:
        found: int = category(request, of)
        model.machine.requests.category[int(request.request_id)] = found
        return found

    learner.category = told
    use = vllm.steering.use

    def used(table: Any) -> None:
        model.machine.tables[:] = table
        use(table)

    vllm.steering.use = used
    used(learner.table)


def free_blocks(vllm: VllmScheduler) -> list[tuple[int, bool]]:
    """(number from 0, whether it has a hash) of vLLM's free blocks, the next to be taken first."""
    queue = vllm.scheduler.kv_cache_manager.block_pool.free_block_queue
    free = queue.get_all_free_blocks()
    if isinstance(queue, FreeBlocks):
        free = free[: len(free) - len(list(queue.set_aside))]
    return [(one.block_id - 1, one.block_hash is not None) for one in free]


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
