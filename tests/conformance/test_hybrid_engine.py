"""Real engines of tiny hybrid models over HTTP: every hit is as the simulated vLLM predicts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from kvscope.deployment.models import read_config
from kvscope.latency.profile import LatencyProfile
from kvscope.policies.lru import Lru
from kvscope.serving.client import block_pool
from kvscope.serving.interpreter import interpreter, with_vllm
from kvscope.serving.server import Launch, VllmServer
from kvscope.validate.predict import predict
from kvscope.validate.replay import Pace, TraceReplay
from kvscope.validate.tokens import TokenTrace
from kvscope.vllm_sim import EngineSettings
from tests.long import long
from tests.validate.test_tokens import chats

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(interpreter().vllm is None, reason="no vLLM here: make test-engine"),
]

SIZE = 32
LONGEST = 1024
SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 2 * LONGEST,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}
SLIDING, FULL = "sliding_attention", "full_attention"
MODELS: dict[str, dict[str, Any]] = {
    "gemma3": {
        **SHAPE,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "intermediate_size": 256,
        "num_hidden_layers": 6,
        "sliding_window": 64,
        "layer_types": [SLIDING] * 5 + [FULL],
        "query_pre_attn_scalar": 64,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "gpt-oss": {
        **SHAPE,
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "sliding_window": 128,
        "layer_types": [SLIDING, FULL],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_theta": 150000,
        "initial_context_length": 2 * LONGEST,
        "swiglu_limit": 7.0,
    },
    "qwen3-next": {
        **SHAPE,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "head_dim": 128,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.25,
    },
    "lfm2": {
        **SHAPE,
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "intermediate_size": 256,
        "block_dim": 128,
        "block_ff_dim": 256,
        "block_auto_adjust_ff_dim": False,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 32,
        "conv_L_cache": 3,
        "conv_bias": False,
        "conv_dim": 128,
        "conv_dim_out": 128,
        "num_hidden_layers": 4,
        "full_attn_idxs": [1, 3],
        "norm_eps": 1e-6,
        "rope_theta": 1e6,
    },
}
STATES = {"qwen3-next": ("--mamba-ssm-cache-dtype", "bfloat16")}  # as on GPUs: CPUs may differ
POOLS = {"gemma3": 480, "gpt-oss": 100, "qwen3-next": 30, "lfm2": 100}  # blocks


@pytest.mark.parametrize(
    ("model", "retention", "requests", "unit"),
    [
        ("qwen3-next", 0, 40, None),
        long("qwen3-next", 0, 60, None),
        long("qwen3-next", 0, 60, SIZE),
        long("gpt-oss", 0, 60, None),
        long("lfm2", 0, 60, None),
        long("gemma3", 0, 150, None),
        long("gemma3", None, 150, None),
        long("gpt-oss", 128, 150, None),
        long("qwen3-next", None, 150, None),
        long("qwen3-next", 320, 150, None),
    ],
)
def test_every_hit_is_as_predicted(
    tmp_path: Path, model: str, retention: int | None, requests: int, unit: int | None
) -> None:
    """Chats, outputs included, in a pool that evicts: not one token off.

    With a `prefix_match_unit`, hits end within blocks.
    """
    (tmp_path / "config.json").write_text(json.dumps(MODELS[model]))
    groups = read_config(tmp_path / "config.json").kv_groups(SIZE, SIZE)
    assert groups is not None
    groups = groups.retaining(float("inf") if retention is None else retention).matching(unit)
    blocks, size = POOLS[model], groups.block_tokens
    hashed = min(size, groups.hit_tokens)
    launch = Launch(
        str(tmp_path),
        SIZE,
        blocks,
        max_model_len=LONGEST + 1,
        max_num_seqs=16,
        max_num_batched_tokens=2048,
        forced_outputs=True,
        flags=(
            *("--prefix-cache-retention-interval", str(retention)),
            *(("--prefix-match-unit", str(unit)) if unit else ()),
            *STATES.get(model, ()),
        ),
        environment={"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
    )
    trace = TokenTrace(chats(tmp_path, requests, 30), forced=True)
    pace = Pace("sequential")
    with VllmServer(launch, with_vllm(sys.executable), start_s=480) as server:
        name, pool = server.endpoint.model().name, block_pool(server.endpoint.metrics())
        assert pool is not None
        assert pool.block_size == size
        run = TraceReplay(server.endpoint, name, trace, pace, advance=lambda _: None, stop=Event())
        measured = run.run()
    assert (measured.ended, measured.errors) == ("", {})

    def hits(usable_blocks: int, kept: object = groups) -> list[int]:
        settings = EngineSettings(usable_blocks, 16, 2048, groups=kept)  # type: ignore[arg-type]
        profile = LatencyProfile("a guess", "", 5e-3, 3e-5)
        return predict(trace.sent(hashed), Lru(), settings, profile, pace).hit_tokens.tolist()

    assert measured.hit_tokens.tolist() == hits(blocks)
    assert any(tokens % size for tokens in hits(blocks)) == (unit is not None)
    assert sum(hits(blocks)) < sum(hits(100_000))  # the bound was felt
    assert hits(blocks) != hits(blocks // 2, None)  # and so are the windows
