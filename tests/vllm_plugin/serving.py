"""A real vLLM in a process of its own, on a CPU, with a tiny model of random weights.

`python -m tests.vllm_plugin.serving` starts one engine and then serves a scenario per line of
stdin: a JSON document with `what`, `requests`, `blocks` and `environment`, the settings of the
plugin as an operator gives them; for `faults` also the arguments of `inject`. Unless `guarded`,
`gittins` goes by its table whatever that is worth. It answers with one
JSON line: what was served, in order, and what vLLM found in its cache. Every scenario gets a new
KvscopeScheduler, which has an empty cache.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.tiny_llama import VOCABULARY, tiny_llama
from kvscope.learning.returns.online import ReturnsLearner
from tests.vllm_plugin.faults import inject

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # other tests run at the same time
}
BLOCK, LONGEST, MOST_BLOCKS = 32, 2048, 400
SETTINGS = ("KVSCOPE_RECOMMENDATION", "KVSCOPE_RECORD")
KINDS = ("chat", "api", "agent", "batch")
MODEL = tiny_llama(LONGEST)
Serve = Callable[..., dict[str, Any]]


def conversations(serve: Serve, requests: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield conversations of several turns under shared heads, built on the model's answers."""
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


def documents(serve: Serve, requests: int) -> Iterator[dict[str, Any]]:
    """Yield three chats in turn; after each turn comes a document that nobody asks about again."""
    rng = np.random.default_rng(11)

    def tokens(count: int) -> list[int]:
        return rng.integers(0, VOCABULARY, count).tolist()

    chats: list[list[int]] = [[], [], []]
    for number in range(requests // 2):
        which = number % len(chats)
        prompt = chats[which] + tokens(40)
        answer = serve(prompt, 8, session=f"chat {which}", kind="chat", gap_s=5.0)
        chats[which] = [] if len(prompt) > LONGEST // 4 else prompt + answer["output"]
        yield answer
        yield serve(tokens(640), 1, session=f"document {number}", kind="batch", gap_s=5.0)


def five_sessions(serve: Serve) -> Iterator[dict[str, Any]]:
    """Yield five repeated prompts in turn, 31,680 tokens; 64 blocks do not hold all of them."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, VOCABULARY, 528).tolist() for _ in range(5)]
    for _ in range(12):
        for number, prompt in enumerate(prompts):
            yield serve(prompt, 2, session=f"caller {number}", kind="chat", gap_s=1.0)


def lengths(serve: Serve, requests: int) -> Iterator[dict[str, Any]]:
    """Yield prompts of all lengths, none of which is cached."""
    rng = np.random.default_rng(3)
    for size in np.exp(rng.uniform(np.log(32), np.log(LONGEST - BLOCK), requests)).astype(int):
        prompt = rng.integers(0, VOCABULARY, size).tolist()
        yield serve(prompt, 1, session=f"caller {size}", kind="chat", gap_s=1.0)


def injected_causes(serve: Serve) -> Iterator[dict[str, Any]]:
    """Yield requests with the cause that their misses were made for; 40 blocks are the cache."""
    rng = np.random.default_rng(11)

    def tokens(blocks: int) -> list[int]:
        return rng.integers(0, VOCABULARY, blocks * BLOCK).tolist()

    def ask(cause: str, prompt: list[int], **more: Any) -> dict[str, Any]:
        number = next(numbers)
        asked = {"session": f"session {number}", "kind": "chat", "gap_s": 1.0} | more
        return serve([*prompt, number], 1, **asked) | {"cause": cause}

    numbers = itertools.count(1)
    prompt, history = tokens(8), tokens(6)
    yield ask("cold", prompt)
    yield ask("below-block", prompt)  # all but the partial last block hits
    yield ask("salt", prompt, cache_salt="tenant")
    yield ask("below-block", tokens(1)[:20])
    yield ask("cold", history, session="chat")
    edited = [*history[: 2 * BLOCK], *tokens(1), *history[3 * BLOCK :]]
    yield ask("diverged", edited, session="chat")
    yield ask("growth", [*prompt, *tokens(2)])
    for _ in range(3):
        yield ask("cold", tokens(14))
    yield ask("evicted", prompt)


class Engine:
    """vLLM on a clock of whole steps: a step takes a second."""

    def __init__(self, folder: str) -> None:
        from vllm import LLM

        Path(folder, "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        self.llm = LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=True,
            block_size=BLOCK,
            num_gpu_blocks_override=MOST_BLOCKS + 1,
            max_model_len=LONGEST,
            max_num_batched_tokens=LONGEST,
            distributed_executor_backend="uni",
            disable_log_stats=False,
            seed=0,
            scheduler_cls="kvscope.vllm_plugin.KvscopeScheduler",
        )
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.now_s = 0.0
        self.requests = 0  # of all scenarios: vLLM wants names that are new

    def new_scheduler(self, blocks: int) -> None:
        """Replace the scheduler, as the engine's core makes it, by one with so many blocks."""
        while self.scheduler.has_requests():  # the worker still has to drop the last request
            self.llm.llm_engine.step()
        self.scheduler.shutdown()
        cache = replace(self.scheduler.kv_cache_config, num_blocks=blocks + 1)
        self.core.vllm_config.cache_config.num_gpu_blocks = blocks + 1
        self.scheduler = self.core.scheduler = type(self.scheduler)(
            vllm_config=self.core.vllm_config,
            kv_cache_config=cache,
            structured_output_manager=self.core.structured_output_manager,
            log_stats=True,
            block_size=BLOCK,
            hash_block_size=BLOCK,
        )
        self.now_s = 0.0
        for observer in self.scheduler.kvscope:
            if hasattr(observer, "policy"):
                observer.clock = lambda: self.now_s
        update = self.scheduler.update_from_output

        def update_from_output(*arguments: Any) -> Any:
            self.now_s += 1
            return update(*arguments)

        self.scheduler.update_from_output = update_from_output

    def serve(
        self,
        prompt: list[int],
        outputs: int,
        *,
        session: str,
        kind: str,
        gap_s: float,
        cache_salt: str | None = None,
    ) -> dict[str, Any]:
        """Serve one request, alone."""
        from vllm import SamplingParams

        self.now_s += gap_s
        arrival_s = self.now_s
        hints = {"kvscope_type": kind, "kvscope_turn": 1}
        params = SamplingParams(
            max_tokens=outputs, ignore_eos=True, detokenize=False, temperature=0, extra_args=hints
        )
        engine, self.requests = self.llm.llm_engine, self.requests + 1
        name = str(self.requests)
        asked: dict[str, Any] = {"prompt_token_ids": prompt}
        if cache_salt is not None:
            asked["cache_salt"] = cache_salt
        engine.add_request(name, asked, params, session_id=session)
        while engine.has_unfinished_requests():
            result = engine.step()[0]
        return {
            "prompt": prompt,
            "output": list(result.outputs[0].token_ids),
            "hit_tokens": result.num_cached_tokens,
            "arrival_s": arrival_s,
            "session": session,
            "kind": kind,
        }

    def counted_hits(self) -> int:
        """Return vLLM's own counter of hit tokens, over all scenarios."""
        (counter,) = (x for x in self.llm.get_metrics() if x.name == "vllm:prefix_cache_hits")
        return int(counter.value)


def answer(engine: Engine, scenario: dict[str, Any]) -> dict[str, Any]:
    """Serve a scenario with a new scheduler."""
    for name in SETTINGS:
        os.environ.pop(name, None)
    os.environ |= scenario["environment"]
    if scenario["what"] == "faults":
        return {"faults": inject(engine, **scenario["faults"])}
    with ExitStack() as patches:
        if not scenario["guarded"]:
            patches.enter_context(patch.object(ReturnsLearner, "guard", lambda *_: None))
        engine.new_scheduler(scenario["blocks"])
    before = engine.counted_hits()
    if scenario["what"] == "conversations":
        served = list(conversations(engine.serve, scenario["requests"], 7))
    elif scenario["what"] == "documents":
        served = list(documents(engine.serve, scenario["requests"]))
    elif scenario["what"] == "lengths":
        served = list(lengths(engine.serve, scenario["requests"]))
    elif scenario["what"] == "injected-causes":
        served = list(injected_causes(engine.serve))
    else:
        served = list(five_sessions(engine.serve))
    observers = engine.scheduler.kvscope
    document = {
        "served": served,
        "counted_hits": engine.counted_hits() - before,
        "observers": [type(observer).__name__ for observer in observers],
        "broken": [observer.broken for observer in observers],
    }
    engine.scheduler.shutdown()  # a recording ends here
    return document


def main() -> None:
    """Serve scenarios until stdin ends."""
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(folder)
        for line in sys.stdin:
            sys.stdout.write(json.dumps(answer(engine, json.loads(line))) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
