"""Compare a simulated fleet with two real vLLMs behind the real SGLang router, on loopback.

Run it in an environment that has vLLM, sglang-router and kvscope. The model has random weights and
a tokenizer of one token a byte, so that text, which the router sees, and tokens, which engines
cache, agree. The requests of a small trace are sent one after the other; in groups, which engines
start only when the router counts all of a group; and as soon as fewer than so many are in flight.
For each the chosen replica and the tokens hit there are compared with those of `kvscope.fleet`.
`--record` writes the table into docs/evidence/fleets.md. Exits with 0 if all are as predicted
where loads are known.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, Self
from urllib.request import Request, urlopen

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace

from benchmarks import ROOT
from benchmarks.processes import note
from benchmarks.router_program import TIMEOUT_S, RouterProgram
from benchmarks.table import Table, record
from benchmarks.tiny_llama import tiny_llama
from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.prefix import paths
from kvscope.core.trace import Prompts
from kvscope.fleet.engines import replay_engines
from kvscope.ingest.pipeline import ingest
from kvscope.policies.lru import Lru
from kvscope.routers.sglang import Sglang
from kvscope.serving.client import Endpoint
from kvscope.serving.interpreter import with_vllm
from kvscope.serving.server import Launch, VllmServer
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from kvscope.synth.base import Fixed, Skewed
from kvscope.synth.profiles import write_jsonl
from kvscope.synth.to_c import Kind, ToC, gaps
from kvscope.validate.tokens import TokenTrace
from kvscope.vllm_sim import EngineSettings, StepCost

PAGE = ROOT / "docs" / "evidence" / "fleets.md"
REPLICAS, BLOCK, BLOCKS = 2, 32, 100
OUTPUT_TOKENS, LONGEST = 24, 2_048
GROUPS, IN_FLIGHT = (1, 4), (4, 8)  # most in flight, with known loads and without
MODEL = "tiny"
ON_GPU = Path("/dev/nvidiactl").exists()
"""Whether both engines share a GPU: then the model is larger, and steps overlap."""
SETTINGS = EngineSettings(
    BLOCKS, max_num_seqs=16, max_num_batched_tokens=LONGEST, async_scheduling=ON_GPU
)
ON_ONE_GPU = ("--gpu-memory-utilization", "0.4", "--enforce-eager") if ON_GPU else ()
LARGER = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
# One thread for each engine: several wait for each other.
DTYPE = "bfloat16" if ON_GPU else "float32"
ONE_CORE = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
APART_S, STEPS_OF_1_S = 1e4, StepCost(base_s=1.0)  # no group takes so many steps
WRONG = {"cache_threshold": 0.5}
FIRST_CHARACTER, CHARACTERS = 33, 94  # printable ones without the space
CHATS = ToC(
    conversation_rate_per_s=0.05,
    lead_in_s=0.0,
    next_turn=(0.7,) * 5,
    engaged_share=0.0,
    max_turns=6,
    kinds=(
        Kind(
            "chat",
            1.0,
            gaps(1.0),
            (Skewed(90, 0.6),) * 5,
            Skewed(90, 0.6),
            Fixed(OUTPUT_TOKENS),
            product_prompt_share=0.3,
        ),
    ),
    personal_prompt_tokens=Skewed(120, 0.5),
    product_prompt_tokens=2 * BLOCK,
    block_size=BLOCK,
)


class Outcome(NamedTuple):
    """The replica that served each of R requests, and the tokens that it hit there."""

    replica: Int32s
    hit_tokens: Int64s


class Measured(NamedTuple):
    """What happened to R requests; times in seconds after the run began."""

    outcome: Outcome
    sent_s: Float64s
    ended_s: Float64s


def write_model(folder: Path) -> None:
    """Write a small Llama without weights, and a tokenizer that makes one token of each byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: at for at, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
    config = tiny_llama(LONGEST, DTYPE) | {"vocab_size": len(alphabet)}
    config |= LARGER if ON_GPU else {}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def load(requests: int, folder: Path) -> Prompts:
    """Return a trace of chats as engines see it whose outputs no later turn repeats."""
    path = folder / "chats.jsonl"
    write_jsonl(CHATS.generate(requests=requests, seed=1), path)
    with open_store(MEMORY) as store:
        prompts = load_prompts(store, ingest(store, str(path)).trace)
    return TokenTrace(prompts, forced=False).sent(BLOCK)


def texts(prompts: Prompts) -> list[str]:
    """Return each prompt, a character a token; blocks after the same one differ from the first.

    So do ends of prompts that fill no block. As far as there are enough characters, at least.
    """
    children = np.zeros(len(prompts.block_parent), dtype=np.int64)

    def below(block: int) -> str:
        """Return the next text of a block's length below another one."""
        rest, first = divmod(int(children[block]), CHARACTERS)
        children[block] += 1
        return "".join(chr(FIRST_CHARACTER + at) * (BLOCK // 2) for at in (first, rest))

    of_block = [""] + [below(parent) for parent in prompts.block_parent[1:].tolist()]
    path = paths(prompts.block_parent, prompts.leaf, prompts.blocks)
    written = []
    for request, tokens in enumerate(prompts.input_tokens.tolist()):
        blocks = path.blocks[path.starts[request] : path.starts[request + 1]]
        text = "".join(of_block[block] for block in blocks.tolist())
        written.append((text + below(int(prompts.leaf[request])))[:tokens])
    return written


class RealFleet:
    """Real vLLMs on loopback until the context ends, and for each run a router in front of them."""

    def __init__(self, folder: Path) -> None:
        write_model(folder)
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        has = with_vllm(sys.executable)
        servers = [VllmServer(self._launch(number), has) for number in range(REPLICAS)]
        with self._stack as stack, ThreadPoolExecutor(REPLICAS) as threads:
            entered = [threads.submit(stack.enter_context, server) for server in servers]
            for server in entered:
                server.result()
            self._stack = stack.pop_all()
        self.engines = [server.endpoint for server in servers]
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def in_groups(self, prompts: Prompts, groups: Sequence[Sequence[int]]) -> Measured:
        """Send groups of requests, each when the one before is answered.

        Engines pause until the router counts all of a group, so that its loads are known.
        """
        with self._sender(prompts) as sender, ThreadPoolExecutor(max(map(len, groups))) as threads:
            for group in groups:
                paused = self.engines if len(group) > 1 else []
                for engine in paused:
                    _post(engine, "/pause?mode=keep&clear_cache=false")
                answers = []
                for place, request in enumerate(group):
                    answers.append(threads.submit(sender.send, request))
                    if paused:
                        sender.program.wait_for_load(place + 1)
                for engine in paused:
                    _post(engine, "/resume")
                for answer in answers:
                    answer.result()
                sender.program.wait_for_load(0)
        return sender.measured()

    def in_flight(self, prompts: Prompts, at_once: int) -> Measured:
        """Send requests in the trace's order as soon as fewer than `at_once` are in flight.

        A turn waits for the answer to the one before it.
        """
        answers: list[Future[None]] = []
        room = threading.BoundedSemaphore(at_once)
        with self._sender(prompts) as sender, ThreadPoolExecutor(at_once) as threads:
            for request, parent in enumerate(prompts.parent.tolist()):
                if parent >= 0:
                    answers[parent].result()
                room.acquire()
                answers.append(threads.submit(sender.send, request))
                answers[-1].add_done_callback(lambda _: room.release())
            for answer in answers:
                answer.result()
        return sender.measured()

    def _launch(self, number: int) -> Launch:
        """Return how to start an engine that answers in the name of its number."""
        return Launch(
            str(self._folder),
            BLOCK,
            BLOCKS,
            max_model_len=LONGEST,
            max_num_seqs=SETTINGS.max_num_seqs,
            max_num_batched_tokens=SETTINGS.max_num_batched_tokens,
            flags=("--served-model-name", str(number), MODEL, "--dtype", DTYPE, *ON_ONE_GPU),
            environment=ONE_CORE,
        )

    @contextmanager
    def _sender(self, prompts: Prompts) -> Iterator[_Sender]:
        """Yield a sender to a new router; engines forget what they cached."""
        for engine in self.engines:
            if not engine.reset_cache():
                raise RuntimeError(f"{engine.url} does not empty its cache")
        options = [*" ".join(Sglang().flags()).split(), "--log-level", "warn"]
        urls = [engine.url for engine in self.engines]
        with RouterProgram("sglang_router", urls, options) as program:
            yield _Sender(program, prompts)


class _Sender:
    """Sends the texts of R prompts to a router, and notes which replica answered and its hits."""

    def __init__(self, program: RouterProgram, prompts: Prompts) -> None:
        self.program, self._prompts, self._texts = program, prompts, texts(prompts)
        requests = len(self._texts)
        self._replica = np.zeros(requests, dtype=np.int32)
        self._hit_tokens = np.zeros(requests, dtype=np.int64)
        self._sent_s, self._ended_s = np.zeros((2, requests))
        self._begin_s = time.perf_counter()

    def send(self, request: int) -> None:
        """Send a request and wait for the answer. Raise RuntimeError if it is not as asked for."""
        body = {
            "model": MODEL,
            "prompt": self._texts[request],
            "max_tokens": OUTPUT_TOKENS,
            "ignore_eos": True,
        }
        connection = self.program.connection()
        self._sent_s[request] = time.perf_counter() - self._begin_s
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        answer = json.loads(response.read())
        self._ended_s[request] = time.perf_counter() - self._begin_s
        self.program.release(connection)
        tokens = {
            "prompt_tokens": self._prompts.input_tokens[request],
            "completion_tokens": OUTPUT_TOKENS,
        }
        usage = answer.get("usage", {})
        if response.status != HTTPStatus.OK or not tokens.items() <= usage.items():
            raise RuntimeError(f"request {request} of {tokens}: {response.status}, {answer}")
        self._replica[request] = int(answer["model"])
        self._hit_tokens[request] = (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)

    def measured(self) -> Measured:
        """Return what happened; the first request shows the first of the router's own order."""
        in_order = (self._replica - self._replica[0]) % REPLICAS
        return Measured(Outcome(in_order, self._hit_tokens), self._sent_s, self._ended_s)


def _post(engine: Endpoint, path: str) -> None:
    request = Request(engine.url + path, method="POST")  # noqa: S310  (an engine of ours)
    urlopen(request, timeout=TIMEOUT_S).close()  # noqa: S310


def groups_of(prompts: Prompts, at_once: int) -> Iterator[list[int]]:
    """Yield up to `at_once` requests in turn, of which none continues another."""
    group: list[int] = []
    for request, parent in enumerate(prompts.parent.tolist()):
        if len(group) == at_once or parent in group:
            yield group
            group = []
        group.append(request)
    yield group


def predict(prompts: Prompts, arrival_s: Float64s, cost: StepCost, **values: float) -> Outcome:
    """Return what kvscope predicts for requests that arrive at these times."""
    router = Sglang({"characters_per_token": 1, **values})
    timed = replace(prompts, arrival_s=arrival_s)
    run = replay_engines(timed, Lru(), router, REPLICAS, SETTINGS, cost)
    return Outcome(run.replica, run.hit_blocks.astype(np.int64) * BLOCK)


def group_times(groups: Sequence[Sequence[int]]) -> Float64s:
    """Return times of arrival: those of a group are the same, and groups never overlap."""
    return np.array([APART_S * number for number, group in enumerate(groups) for _ in group])


def fitted_cost(prompts: Prompts, alone: Measured) -> StepCost:
    """Return the cost of steps that fits requests sent one after the other."""
    uncached = prompts.input_tokens - alone.outcome.hit_tokens
    took_s = alone.ended_s - alone.sent_s
    columns = np.column_stack([np.full(len(uncached), OUTPUT_TOKENS), uncached])
    (step_s, token_s), *_ = np.linalg.lstsq(columns, took_s, rcond=None)
    return StepCost(base_s=max(float(step_s), 1e-6), prefill_token_s=max(float(token_s), 0.0))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--requests", type=int, default=300, help="of each run (default 300)")
    parser.add_argument("--record", action="store_true", help=f"also write {PAGE.name}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prompts = load(options.requests, Path(folder))
        with RealFleet(Path(folder)) as fleet:
            rows, passed = _compare(fleet, prompts)
    table = Table(
        "Two vLLMs behind sglang-router",
        f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, vLLM {with_vllm(sys.executable).vllm}, sglang-router"
        f" {version('sglang-router')}; {options.requests} requests a run, {BLOCKS} blocks of"
        f" {BLOCK} tokens a replica.",
        (
            "sent",
            "by replica",
            "hit tokens",
            "predicted, or in a second run",
            "replicas that differ",
            "hits that differ",
            "replicas that differ with threshold 0.5",
        ),
        rows,
    )
    print(json.dumps(to_builtins(table)) if options.json else table.markdown())
    if options.record:
        record(PAGE, table.markdown(), "live-fleet")
    return int(not passed)


def _compare(fleet: RealFleet, prompts: Prompts) -> tuple[list[list[str]], bool]:
    """Return the table's rows, and whether all is as predicted where loads are known."""
    rows, passed = [], True
    for at_once in GROUPS:
        note(f"up to {at_once} in flight, loads known")
        groups = list(groups_of(prompts, at_once))
        measured = fleet.in_groups(prompts, groups)
        if at_once == 1:
            cost = fitted_cost(prompts, measured)
        name = "one after the other" if at_once == 1 else f"in groups of up to {at_once}"
        ours, wrong = _predictions(prompts, group_times(groups), STEPS_OF_1_S)
        rows.append(_row(name, prompts, measured.outcome, ours, wrong))
        passed &= rows[-1][4:6] == ["0.0%", "0.0%"]
    for at_once in IN_FLIGHT:
        note(f"{at_once} in flight, twice")
        measured, again = (fleet.in_flight(prompts, at_once) for _ in range(2))
        ours, wrong = _predictions(prompts, np.maximum.accumulate(measured.sent_s), cost)
        name = f"{at_once} in flight"
        rows.append(_row(name, prompts, measured.outcome, ours, wrong))
        rows.append(_row(f"{name}, against a second run", prompts, measured.outcome, again.outcome))
    return rows, passed


def _predictions(prompts: Prompts, arrival_s: Float64s, cost: StepCost) -> tuple[Outcome, Outcome]:
    """Return kvscope's prediction, and that of a wrong router."""
    return predict(prompts, arrival_s, cost), predict(prompts, arrival_s, cost, **WRONG)


def _row(
    name: str, prompts: Prompts, real: Outcome, ours: Outcome, wrong: Outcome | None = None
) -> list[str]:
    """Return what happened, and the shares of requests for which predictions differ."""
    tokens = int(prompts.input_tokens.sum(dtype=np.int64))
    return [
        name,
        " + ".join(map(str, np.bincount(real.replica, minlength=REPLICAS).tolist())),
        f"{real.hit_tokens.sum() / tokens:.1%}",
        f"{ours.hit_tokens.sum() / tokens:.1%}",
        f"{(ours.replica != real.replica).mean():.1%}",
        f"{(ours.hit_tokens != real.hit_tokens).mean():.1%}",
        "" if wrong is None else f"{(wrong.replica != real.replica).mean():.1%}",
    ]


if __name__ == "__main__":
    sys.exit(main())
