"""Requests of different models, LoRA adapters or cache salts share no blocks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvscope.core.hits import standard
from kvscope.core.trace import Prompts
from kvscope.ingest.formats.registry import export
from kvscope.ingest.pipeline import ingest
from kvscope.policies.lru import Lru
from kvscope.replay.replay import replay
from kvscope.replay.traffic import traffic
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts

Line = dict[str, object]


def line(at: int, **more: object) -> Line:
    """Return a record with a prompt of three blocks of four tokens, the same each time."""
    return {
        "timestamp": at,
        "input_length": 13,
        "output_length": 1,
        "hash_ids": [1, 2, 3],
        "block_size": 4,
        **more,
    }


def read(folder: Path, *lines: Line) -> Prompts:
    """Ingest the lines and load them as a replay does."""
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    with open_store(MEMORY) as store:
        return load_prompts(store, ingest(store, str(path)).trace)


def hits(prompts: Prompts) -> list[int]:
    """Return the leading blocks that each request hits in a cache with room for all."""
    return list(replay(traffic(prompts, standard()), Lru(), 100).hit_blocks)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"model": "a"}, {"model": "b"}),
        ({"model": "a"}, {}),
        ({"lora_name": "a"}, {"lora_name": "b"}),
        ({"lora_id": 1}, {"lora_id": 2}),
        ({"lora_id": 1}, {"lora_id": 0}),
        ({"cache_salt": "a"}, {"cache_salt": "b"}),
        ({"model": "a", "cache_salt": "s"}, {"model": "a"}),
    ],
)
@pytest.mark.parametrize("chats", [False, True], ids=["mooncake", "bailian"])
def test_tenants_share_nothing(tmp_path: Path, one: Line, other: Line, *, chats: bool) -> None:
    """Equal hash ids are other blocks; within a tenant they are the same, whoever came first."""
    lines = [line(at, **tenant) for at, tenant in enumerate((one, other, one, other))]
    if chats:
        lines = [{"chat_id": at, "parent_chat_id": -1, **each} for at, each in enumerate(lines)]
    prompts = read(tmp_path, *lines)
    assert hits(prompts) == [0, 0, 3, 3]
    assert len(prompts.block_parent) == 1 + 2 * 3


@pytest.mark.parametrize(
    "same",
    [
        {"model": "a", "lora_name": "l", "cache_salt": "s"},
        {"lora_id": 0, "lora_name": "", "cache_salt": ""},
    ],
)
def test_one_tenant_is_a_trace_as_ever(tmp_path: Path, same: Line) -> None:
    """The same model throughout changes no block; base model and empty salt are none."""
    prompts = read(tmp_path, line(0, **same), line(1, **same))
    plain = read(tmp_path, line(0), line(1))
    assert hits(prompts) == hits(plain) == [0, 3]
    assert prompts.leaf.tolist() == plain.leaf.tolist()


def test_a_turn_under_another_model_carries_no_output(tmp_path: Path) -> None:
    """A session's next turn names the blocks of its own model, not those the turn before left."""
    short = {"input_length": 2, "output_length": 7, "hash_ids": [1], "session_id": "s"}
    turn = {"session_id": "s", "model": "b"}
    prompts = read(tmp_path, line(0, **short, model="a"), line(1, **turn), line(2, **turn))
    assert prompts.carried_blocks.tolist()[0] == 0
    assert hits(prompts) == [0, 0, 3]


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({"model": 7}, "Expected `str | null`, got `int` - at `$.model`"),
        ({"lora_id": 1.5}, "Expected `int | str | null`, got `float` - at `$.lora_id`"),
        ({"cache_salt": ["a"]}, "Expected `str | null`, got `array` - at `$.cache_salt`"),
    ],
)
def test_other_types_are_refused(tmp_path: Path, field: Line, reason: str) -> None:
    """With the line, the field and what was expected."""
    path = tmp_path / "trace.jsonl"
    lines = [line(at) for at in range(200)] + [line(200, **field)]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    with open_store(MEMORY) as store:
        rejects = ingest(store, str(path)).rejects
    assert rejects.lines == [(201, reason)]


@pytest.mark.parametrize("to", ["bailian", "mooncake", "parquet"])
def test_an_export_keeps_them_apart(tmp_path: Path, to: str) -> None:
    """Tenants are not written, but their blocks have ids of their own."""
    path, back = tmp_path / "trace.jsonl", tmp_path / "back"
    models = ("a", "b", "a", "b")
    lines = [line(at, model=model) for at, model in enumerate(models)]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    with open_store(MEMORY) as store:
        export(store, ingest(store, str(path)).trace, to, str(back))
        assert hits(load_prompts(store, ingest(store, str(back)).trace)) == [0, 0, 3, 3]
