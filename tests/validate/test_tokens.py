from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.core.trace import Prompts
from kvscope.policies.lru import Lru
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from kvscope.validate.tokens import BEHIND, FIRST, TokenTrace, sample_trace
from kvscope.vllm_sim import EngineSettings, StepCost, replay_engine
from tests.validate.chats import write_chats


def chats(folder: Path, requests: int = 120, alive: int = 12, **how: Any) -> Prompts:
    from kvscope.ingest.pipeline import ingest

    path = write_chats(folder / "chats.jsonl", requests, alive=alive, **how)
    with open_store(MEMORY) as store:
        trace = ingest(store, str(path)).trace
        return load_prompts(store, trace)


def hits_by_tokens(trace: TokenTrace, size: int) -> list[int]:
    """Return the hits of an infinite cache on the tokens themselves, by vLLM's rules."""
    held: set[tuple[int, ...]] = set()
    found = []
    for request in range(len(trace)):
        prompt, output = trace.prompt(request).tolist(), trace.output(request).tolist()
        hits = 0
        while (hits + 1) * size < len(prompt) and tuple(prompt[: (hits + 1) * size]) in held:
            hits += 1
        found.append(hits * size)
        answer = output if trace.forced else [-1 - request] * len(output)
        kept = (prompt + answer)[: len(prompt) + len(output) - 1]
        held |= {tuple(kept[: end * size]) for end in range(1, len(kept) // size + 1)}
    return found


@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.parametrize("size", [16, 32, 64])
def test_tokens_hit_what_is_predicted(tmp_path: Path, size: int, forced: bool) -> None:
    """In the trace's own blocks and in larger ones, outputs said or not: request by request."""
    trace = TokenTrace(chats(tmp_path), forced=forced, seed=3)
    settings = EngineSettings.one_at_a_time(100_000)
    predicted = replay_engine(trace.sent(size), Lru(), settings, StepCost(1.0))
    assert (predicted.hit_blocks * size).tolist() == hits_by_tokens(trace, size)
    assert predicted.hit_blocks.sum() > 0


@pytest.mark.parametrize("capacity", [20, 60])
def test_the_traces_own_blocks_are_predicted_as_ever(tmp_path: Path, capacity: int) -> None:
    """With its block size and carried outputs, tokens change nothing, evictions included."""
    prompts = chats(tmp_path)
    settings = EngineSettings.one_at_a_time(capacity)
    sent = TokenTrace(prompts, forced=True).sent(16)
    ours = replay_engine(sent, Lru(), settings, StepCost(1.0))
    theirs = replay_engine(prompts, Lru(), settings, StepCost(1.0))
    assert ours.hit_blocks.tolist() == theirs.hit_blocks.tolist()


def test_less_is_hit_where_outputs_are_not_said(tmp_path: Path) -> None:
    """Turns then go on from the prompt before them, not from its answer."""
    prompts = chats(tmp_path)
    said = hits_by_tokens(TokenTrace(prompts, forced=True), 16)
    own = hits_by_tokens(TokenTrace(prompts, forced=False), 16)
    assert sum(own) < sum(said)
    assert all(mine <= theirs for mine, theirs in zip(own, said, strict=True))


def test_tokens_are_plain_and_seeded(tmp_path: Path) -> None:
    """Ids that every vocabulary has; the same for the same seed, others for another."""
    prompts = chats(tmp_path)
    first, again, other = (TokenTrace(prompts, forced=True, seed=seed) for seed in (1, 1, 2))
    tokens = np.concatenate([first.prompt(request) for request in range(len(first))])
    assert tokens.min() >= FIRST
    assert tokens.max() < BEHIND
    assert first.prompt(5).tolist() == again.prompt(5).tolist() != other.prompt(5).tolist()
    lengths = [len(first.prompt(request)) for request in range(len(first))]
    assert lengths == prompts.input_tokens.tolist()


def test_turns_are_counted(tmp_path: Path) -> None:
    """From 1, along the parents."""
    prompts = chats(tmp_path)
    turns = TokenTrace(prompts, forced=True).turns
    for request, parent in enumerate(prompts.parent):
        assert turns[request] == (turns[parent] + 1 if parent >= 0 else 1)


def test_a_share_keeps_conversations_and_times(tmp_path: Path) -> None:
    """Those drawn are whole, at their own times; the rest is counted by why it is left out."""
    prompts = chats(tmp_path, 200)
    found = sample_trace(prompts, share=0.5, seconds=40.0, most=60, longest=500, seed=1)
    kept = found.prompts
    assert 0 < len(kept.leaf) <= 60
    left_out = found.outside_sample + found.beyond_limit + found.too_long
    assert left_out + len(kept.leaf) == found.total == 200
    whole = sample_trace(prompts, share=0.5, seed=1).prompts
    members = np.isin(prompts.arrival_s, whole.arrival_s)
    for conversation in np.unique(prompts.conversation):
        assert len(set(members[prompts.conversation == conversation])) == 1
    assert set(kept.arrival_s) <= set(prompts.arrival_s)
