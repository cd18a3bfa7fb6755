"""Compare a recording from KV-cache events with the requests that vLLM's own scheduler served.

Run it in an environment that has vLLM and kvscope. No model: outputs are given, and a step takes
20 ms. Turns follow each other without a pause, which is the hardest case: only events tell them
apart.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import ROOT
from benchmarks.plugin_cost import scheduler_without_model
from benchmarks.soak import BLOCK, BLOCKS, Conversations
from benchmarks.table import Table, record
from benchmarks.tiny_llama import VOCABULARY, tiny_llama
from kvscope.ingest.pipeline import ingest
from kvscope.policies.lru import Lru
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from kvscope.vllm_plugin.kv_events import BlockChains, EventBatch
from kvscope.vllm_plugin.recording import Hashes
from kvscope.vllm_sim.replay import replay_engine
from kvscope.vllm_sim.settings import EngineSettings, StepCost

os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
PAGE = ROOT / "docs" / "evidence" / "recording.md"
STEP_S = 0.02
ALIVE = 64


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--record", action="store_true", help=f"also write {PAGE.name}")
    options = parser.parse_args()
    rows = []
    for in_flight in (1, 16):
        for report in (False, True):
            served = serve(options.requests, in_flight, report=report)
            truth, seen = (_lru_hit_tokens(lines) for lines in (served.requests, served.recorded))
            rows.append(
                [
                    f"{in_flight}, {'all report' if report else 'none reports'}",
                    f"{len(served.recorded):,} of {len(served.requests):,}",
                    f"{served.invisible:,}",
                    f"{served.chains.unsure:,}",
                    f"{seen / truth - 1:+.1%}",
                ]
            )
    table = Table(
        "What KV-cache events show",
        f"`python -m benchmarks.kv_event_recording --requests {options.requests}`: turns without a"
        f" pause, blocks of {BLOCK} tokens. Last column: LRU's hit tokens in {BLOCKS} blocks, of"
        " the recording against the requests that were served.",
        ("in flight", "requests recorded", "storing nothing", "told as unsure", "hit tokens"),
        rows,
    )
    print(table.markdown())
    if options.record:
        record(PAGE, table.markdown(), "kv-events")
    return 0


@dataclass
class Served:
    """Requests as they were served and as events show them; `invisible` ones stored no block."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    recorded: list[dict[str, Any]] = field(default_factory=list)
    invisible: int = 0
    chains: BlockChains = field(default_factory=BlockChains)


def serve(requests: int, in_flight: int, *, report: bool) -> Served:
    """Serve conversations by vLLM's scheduler; requests report what they find if `report`."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    init_none_hash(sha256)
    scheduler = _scheduler()
    published = scheduler.kv_event_publisher
    hasher, hashes = get_request_block_hasher(BLOCK, sha256), Hashes()
    traffic, served, tokens = Conversations(ALIVE), Served(), random.Random(7)
    extra = {"kv_cache_report_mode": "full"} if report else None
    running: dict[str, tuple[Any, str, list[int], float]] = {}
    now_s, sent = 0.0, 0
    hits: dict[str, int] = {}
    while sent < requests or running:
        while len(running) < in_flight and sent < requests:
            session, prompt, outputs = traffic.next_turn()
            params = SamplingParams(max_tokens=outputs, ignore_eos=True, extra_args=extra)
            request = Request(
                str(sent), prompt, params, None, session_id=session, block_hasher=hasher
            )
            scheduler.add_request(request)
            running[str(sent)] = request, session, prompt, now_s
            sent += 1
        planned = scheduler.schedule()
        now_s += STEP_S
        hits |= {new.req_id: new.num_computed_tokens for new in planned.scheduled_new_reqs}
        names = list(planned.num_scheduled_tokens)
        partial = [scheduler.requests[name].is_prefill_chunk for name in names]
        sampled = [[] if more else [tokens.randrange(VOCABULARY)] for more in partial]
        places = {name: place for place, name in enumerate(names)}
        result = ModelRunnerOutput(names, places, sampled_token_ids=sampled)
        scheduler.update_from_output(planned, result)
        if published:
            packed = msgspec.msgpack.encode([now_s, published])
            published.clear()
            batch = msgspec.msgpack.decode(packed, type=EventBatch)
            served.recorded += map(dict, served.chains.take(batch))
        for name, (request, session, prompt, arrival_s) in list(running.items()):
            if request.is_finished():
                del running[name]
                traffic.answered(session, prompt)
                keys = request.block_hashes[: len(prompt) // BLOCK]
                served.requests.append(_line(prompt, request, hashes.of(keys), arrival_s))
                computed = len(prompt) + request.num_output_tokens - 1
                served.invisible += computed // BLOCK == hits[name] // BLOCK
    served.recorded += map(dict, served.chains.ended(float("inf")))
    return served


def _line(prompt: list[int], request: Any, hash_ids: list[int], arrival_s: float) -> dict[str, Any]:
    return {
        "timestamp": arrival_s,
        "input_length": len(prompt),
        "output_length": request.num_output_tokens,
        "hash_ids": hash_ids,
        "block_size": BLOCK,
    }


class _Published(list[Any]):
    """Events in place of vLLM's publisher."""

    def publish(self, batch: Any) -> None:
        """Keep a step's events."""
        self += batch.events


def _scheduler() -> Any:
    """Return vLLM's scheduler without a model, which publishes its events to a list."""
    from vllm.config.kv_events import KVEventsConfig

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(tiny_llama(1 << 16)), encoding="utf-8")
        events = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        scheduler = scheduler_without_model(folder, BLOCK, BLOCKS, kv_events_config=events)
    scheduler.kv_event_publisher = _Published()
    return scheduler


def _lru_hit_tokens(lines: list[dict[str, Any]]) -> int:
    """Return the hit tokens of requests that are served by LRU, one after the other."""
    with tempfile.TemporaryDirectory() as folder, open_store(MEMORY) as store:
        path = Path(folder) / "trace.jsonl"
        ordered = sorted(lines, key=lambda line: line["timestamp"])
        path.write_text("".join(json.dumps(line) + "\n" for line in ordered), encoding="utf-8")
        prompts = load_prompts(store, ingest(store, str(path)).trace)
    settings = EngineSettings.one_at_a_time(BLOCKS)
    replayed = replay_engine(prompts, Lru(), settings, StepCost(base_s=1.0))
    return int(replayed.hit_blocks.sum()) * BLOCK


if __name__ == "__main__":
    sys.exit(main())
