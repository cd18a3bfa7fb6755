"""Speculative decoding as an option of a deployment: what is read, and what follows from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

import kvscope
from kvscope.core.errors import UsageError
from kvscope.deployment.config_fields import ConfigFields, has_mtp
from kvscope.deployment.deployment import Deployment, resolve
from kvscope.deployment.engines import Engine, parse_engine
from kvscope.deployment.speculative import Drafter, parse_drafter
from kvscope.policies.lru import Lru
from kvscope.tuning.flags import EngineLaunch, flags

QWEN = Path(__file__).parent / "configs" / "qwen3-next-80b" / "config.json"
PLAIN = {"gpu": "h100", "model": "llama3-8b"}


@pytest.mark.parametrize(
    ("text", "drafter"),
    [
        ("mtp", Drafter("mtp", 1)),
        ("MTP:3", Drafter("mtp", 3)),
        ("eagle3:2@2.5", Drafter("eagle3", 2, 2.5)),
        ("ngram:5", Drafter("ngram", 5)),
        ("none", None),
    ],
)
def test_drafters_are_read(text: str, drafter: Drafter | None) -> None:
    """A method, its tokens, and those that a step yields; the engine's text carries them."""
    assert parse_drafter(text) == drafter
    if drafter is not None:
        engine = Engine("vllm", (0, 33), replace(drafter, block_tokens=64))
        assert parse_engine(engine.text).drafter == replace(engine.drafter, per_step=1.0)


@pytest.mark.parametrize("build", ["0.26.0+cpu", "0.33.0+cu128", "0.33.1.dev3+g1234abc.d20261128"])
def test_builds_are_no_drafters(build: str) -> None:
    """What follows a version's plus is the build's own name."""
    engine = parse_engine(f"vllm@{build}")
    assert engine.drafter is None
    assert engine.version == tuple(map(int, build.split(".")[:2]))


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("medusa:2", "no method 'medusa:2'; write mtp, eagle, eagle3, ngram, as in mtp:3"),
        ("eagle", "eagle drafts a number of tokens; write eagle:3 for 3"),
        ("mtp:0", "0 tokens a step; give 1 to 64"),
        ("mtp:x", "x tokens a step; give 1 to 64"),
        ("mtp:2@3.5", "3.5 behind @ is no mean of tokens that a step yields; give 1 to 3"),
        ("mtp:2@", "nothing behind @ is no mean"),
    ],
)
def test_other_drafters_are_refused(text: str, refusal: str) -> None:
    """In one line with what to write."""
    with pytest.raises(UsageError, match=f"--speculative: {refusal}"):
        resolve(Deployment(**PLAIN, speculative=text))


def test_a_drafter_takes_its_layer_and_its_weights() -> None:
    """Each token of the pool has the KV of one layer more, and decoding takes less time."""
    plain, drafted = (resolve(Deployment(**PLAIN, speculative=x)) for x in (None, "eagle:3@2.5"))
    assert drafted.model is not None
    assert plain.model is not None
    assert drafted.model.bytes_per_token * 32 == plain.model.bytes_per_token * 33
    weights = next(term.bytes for term in drafted.pool.terms if term.name == "drafter")
    kv = sum(term.bytes for term in plain.pool.terms) + weights
    assert drafted.pool.num_gpu_blocks == kv // (16 * drafted.model.bytes_per_token)
    assert plain.latency.decode_base_s is not None
    each = plain.latency.decode_base_s
    assert drafted.latency.decode_base_s is not None
    assert each / 2.5 < drafted.latency.decode_base_s < 1.5 * each / 2.5
    ngram = resolve(Deployment(**PLAIN, speculative="ngram:4"))
    assert ngram.pool.blocks == plain.pool.blocks


def test_flags_keep_the_drafter() -> None:
    """The printed flags start the engine as it is."""
    where = resolve(Deployment(**PLAIN, speculative="eagle3:2"))
    printed = flags(Lru(), EngineLaunch.of(where, None)).vllm
    assert printed is not None
    told = '{"method":"eagle3","num_speculative_tokens":2,"model":"DRAFTER"}'
    assert f"--speculative-config '{told}'" in printed
    with pytest.raises(UsageError, match=r"--engine: vllm@0.33\+mtp:1/16 names a drafter"):
        resolve(Deployment(**PLAIN, engine="vllm@0.33+mtp:1/16"))


@pytest.mark.parametrize(
    ("stated", "refusal"),
    [
        ({"engine": "sglang", "model": "llama3-8b"}, "drafters of sglang are not simulated"),
        ({"model": "gpt-oss-20b"}, "gpt-oss-20b has no layers for MTP; take eagle:1 or ngram:1"),
        ({"model": str(QWEN), "tp": 4, "prefix_match_unit": 16}, "beside a prefix_match_unit"),
    ],
)
def test_what_is_not_simulated_is_refused(stated: dict[str, object], refusal: str) -> None:
    """Rather than answered as if there were no drafter."""
    with pytest.raises(UsageError, match=refusal):
        resolve(Deployment(**{"gpu": "h100"} | stated, speculative="mtp"))


@pytest.mark.parametrize(
    ("fields", "has"),
    [
        ({"model_type": "deepseek_v3"}, True),
        ({"model_type": "deepseek_v3", "num_nextn_predict_layers": 0}, False),
        ({"model_type": "llama"}, False),
        ({"model_type": "llama", "num_nextn_predict_layers": 1}, True),
    ],
)
def test_models_with_layers_for_mtp(fields: dict[str, object], has: bool) -> None:
    """What the config states wins over its family."""
    assert has_mtp(ConfigFields("config.json", fields)) == has


def test_eagle_beside_windows() -> None:
    """Its layer is one of full attention: a block holds the KV of 13 of 25 layers, not of 12."""
    stated = Deployment(gpu="h100", model="gpt-oss-20b", num_gpu_blocks=5000)
    alone, drafting = (
        resolve(replace(stated, speculative=drafter)) for drafter in (None, "eagle3:3")
    )
    assert drafting.pool.layer_share == pytest.approx(13 / 25)
    assert alone.pool.layer_share == pytest.approx(12 / 24)
    kinds = [group.kind for group in drafting.kv_groups.groups] if drafting.kv_groups else []
    assert sorted(kinds) == ["full", "sliding"]


def test_eagle_beside_states_is_refused() -> None:
    """As vLLM marks states for it in another way."""
    states = str(Path(__file__).parent / "configs" / "qwen3-next-80b")
    with pytest.raises(UsageError, match="eagle:1 beside the linear layers of qwen3-next-80b"):
        resolve(Deployment(gpu="h100", tp=4, model=states, speculative="eagle:1"))


def test_its_blocks_are_the_engines(tmp_path: Path) -> None:
    """As a log reports them, as stated, or as kernels take them: a hit is shorter by one."""
    log = tmp_path / "engine.log"
    log.write_text('vllm:cache_config_info{block_size="64",num_gpu_blocks="2001"} 1.0\n')
    stated = {"engine_log": str(log), "latency": "llama2-7b-a100"}
    for options, tokens in (
        (PLAIN, 16),
        (PLAIN | stated, 64),
        (PLAIN | {"block_size": 32}, 32),
        ({"gpu": "h200", "tp": 8, "model": "deepseek-v3", "kv_dtype": "fp8"}, 64),
    ):
        method = "mtp" if options["model"] == "deepseek-v3" else "eagle:1"
        drafter = resolve(Deployment(**options, speculative=method)).engine.drafter
        assert drafter is not None
        assert drafter.block_tokens == tokens


def test_explain_counts_what_the_drafter_costs(tmp_path: Path) -> None:
    """Each of 40 second turns loses a block of its hit before 0.33; nothing is evicted."""
    lines = [
        {
            "chat_id": 2 * chat + turn,
            "parent_chat_id": 2 * chat if turn else -1,
            "timestamp": 100.0 * chat + 50.0 * turn,
            "input_length": 160 * (turn + 1),
            "output_length": 1,
            "type": "text",
            "turn": turn + 1,
            "hash_ids": list(range(20 * chat, 20 * chat + 10 * (turn + 1))),
        }
        for chat in range(40)
        for turn in (0, 1)
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    trace = kvscope.open_trace(path, block_size=16)

    def tokens(speculative: str | None, engine: str = "vllm@0.32") -> dict[str, int]:
        told = kvscope.explain(
            trace,
            num_gpu_blocks=100_000,
            model="llama3-8b",
            speculative=speculative,
            engine=engine,
        ).to_dict()
        causes = {each["cause"]: each["tokens"] for each in told["causes"]}
        return causes | {"hit": told["hit_tokens"]}

    plain, drafted = tokens(None), tokens("eagle:2")
    assert plain["hit"] == 40 * 160
    assert plain["drafter"] == 0
    assert drafted["drafter"] == plain["hit"] - drafted["hit"] == 40 * 16
    assert drafted["evicted"] == 0
    newest = tokens("eagle:2", "vllm@0.33")  # hashes prove the token behind a block
    assert newest["hit"] == plain["hit"]
    assert newest["drafter"] == 0
