"""A real vLLM in this process, on a CPU, with a tiny model of random weights: a script for tests.

`python -m tests.vllm_plugin.serving WHAT` prints one JSON document: what was asked and answered, in
order, and what vLLM found in its cache. The plugin comes by `--scheduler-cls`, set up by the
environment as an operator would.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tiny_llama import VOCABULARY, tiny_llama

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # several of these run beside each other
}
BLOCK, LONGEST = 32, 2048
KINDS = ("chat", "api", "agent", "batch")
MODEL = tiny_llama(LONGEST)
Serve = Callable[..., dict[str, Any]]


def conversations(serve: Serve, requests: int, seed: int) -> Iterator[dict[str, Any]]:
    """Conversations of several turns under shared heads, which go on with what was answered."""
    rng = np.random.default_rng(seed)

    def tokens(mean: int) -> list[int]:
        return rng.integers(0, VOCABULARY, 1 + rng.poisson(mean)).tolist()

    heads = [[], tokens(150), tokens(90)]
    served: list[dict[str, Any]] = []
    for _ in range(requests):
        roll, before = rng.random(), None
        if served and roll > 0.35:
            before = served[int(rng.integers(max(len(served) - 12, 0), len(served)))]
        if before is None or len(before["prompt"]) > LONGEST // 2:
            session, kind = f"session {len(served)}", KINDS[int(rng.integers(len(KINDS)))]
            prompt = heads[int(rng.integers(len(heads)))] + tokens(60)
        else:
            session, kind = before["session"], before["kind"]
            history = before["prompt"] + before["output"]
            if roll > 0.9:
                history = history[: int(rng.integers(1, len(history)))]
            prompt = history + tokens(50)
        outputs = 1 + int(rng.poisson(40 if rng.random() < 0.05 else 1))
        gap_s = float(rng.integers(1, 60))
        served.append(serve(prompt, outputs, session=session, kind=kind, gap_s=gap_s))
        yield served[-1]


def five_sessions(serve: Serve) -> Iterator[dict[str, Any]]:
    """Five callers ask the same again in turn, 31,680 tokens; 64 blocks do not hold all of it."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, VOCABULARY, 528).tolist() for _ in range(5)]
    for _ in range(12):
        for number, prompt in enumerate(prompts):
            yield serve(prompt, 16, session=f"caller {number}", kind="chat", gap_s=1.0)


class Engine:
    """vLLM and its plugin on a clock of whole steps: a step takes a second."""

    def __init__(self, folder: str, blocks: int) -> None:
        from vllm import LLM

        Path(folder, "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        self.llm = LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=True,
            block_size=BLOCK,
            num_gpu_blocks_override=blocks + 1,
            max_model_len=LONGEST,
            max_num_batched_tokens=LONGEST,
            distributed_executor_backend="uni",
            disable_log_stats=False,
            seed=0,
            scheduler_cls="kvscope.vllm_plugin.KvscopeScheduler",
        )
        self.scheduler = self.llm.llm_engine.engine_core.engine_core.scheduler
        self.now_s = 0.0
        self.asked = 0
        for one in self.scheduler.kvscope:
            if hasattr(one, "score"):
                one._start_s, one.clock = 0.0, lambda: self.now_s
        update = self.scheduler.update_from_output

        def update_from_output(*of: Any) -> Any:
            self.now_s += 1
            return update(*of)

        self.scheduler.update_from_output = update_from_output

    def serve(
        self, prompt: list[int], outputs: int, *, session: str, kind: str, gap_s: float
    ) -> dict[str, Any]:
        """One request, alone."""
        from vllm import SamplingParams

        self.now_s += gap_s
        arrival_s = self.now_s
        said = {"kvscope_type": kind, "kvscope_turn": 1}
        params = SamplingParams(
            max_tokens=outputs, ignore_eos=True, detokenize=False, temperature=0, extra_args=said
        )
        engine, self.asked = self.llm.llm_engine, self.asked + 1
        name = str(self.asked)
        engine.add_request(name, {"prompt_token_ids": prompt}, params, session_id=session)
        found = None
        while engine.has_unfinished_requests():
            found = engine.step()[0]
        return {
            "prompt": prompt,
            "output": list(found.outputs[0].token_ids),
            "hit_tokens": found.num_cached_tokens,
            "arrival_s": arrival_s,
            "session": session,
            "kind": kind,
        }

    def counted_hits(self) -> int:
        """vLLM's own counter of hit tokens."""
        (found,) = (
            one.value for one in self.llm.get_metrics() if one.name == "vllm:prefix_cache_hits"
        )
        return int(found)


def main() -> None:
    """Run the command line of this file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("conversations", "five-sessions"))
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--blocks", type=int, default=64)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(folder, told.blocks)
        if told.what == "conversations":
            served = list(conversations(engine.serve, told.requests, 7))
        else:
            served = list(five_sessions(engine.serve))
        watching = engine.scheduler.kvscope
        answer = {
            "served": served,
            "counted_hits": engine.counted_hits(),
            "watching": [type(one).__name__ for one in watching],
            "broken": [one.broken for one in watching],
        }
        engine.scheduler.shutdown()
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
