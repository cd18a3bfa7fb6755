"""Run a real vLLM for a long time with a policy and both recordings on, and watch its memory.

Run it in an environment that has vLLM and kvscope. New conversations replace those that end, so
that whatever is kept for each of them grows. Memory is resident memory by process; its slope is
that of a straight line through the samples of the last third, with a 95 % interval that takes
neighbouring samples for the dependent ones that they are. `--requests` fills every bounded memory
of the plugin, which takes a real vLLM hours: vLLM's scheduler serves so many without a model.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks import ROOT
from benchmarks.plugin_cost import MODEL, scheduler_without_model
from benchmarks.table import Table, record
from benchmarks.tiny_llama import VOCABULARY, tiny_llama
from kvscope.serving.client import Endpoint, completion
from kvscope.serving.interpreter import with_vllm
from kvscope.serving.server import Launch, VllmServer

os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
PAGE = ROOT / "docs" / "evidence" / "recording.md"
BLOCK, BLOCKS, LONGEST = 32, 600, 2048
FIRST_TOKENS, TURN_TOKENS, OUTPUT_TOKENS = 200, 90, 24  # means
HEADS = 4  # system prompts, which conversations share
END = 0.12  # share of turns that end a conversation
SAMPLE_S = 5.0
NEW, GAP_S, SAMPLES = 0.6, 0.1, 8  # of the scheduler alone: END, between requests, readings
MIB = 1 << 20
POLICIES = {
    "gittins": {"name": "gittins", "params": {"xi_tokens": 256, "refit_requests": 64}},
    "tlru": {"name": "tlru", "params": {"xi_tokens": 256, "next_prompt_tokens": 100}},
    "wa": {"name": "wa", "params": {"refit_s": 60}},
}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--policy", choices=POLICIES, default="gittins")
    parser.add_argument("--conversations", type=int, default=64, help="alive at a time")
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--report", action="store_true", help="requests report what they find")
    parser.add_argument("--without-plugin", action="store_true", help="only vLLM, for comparison")
    parser.add_argument("--requests", type=int, help="in vLLM's scheduler, without a model")
    parser.add_argument("--folder", type=Path, help="keep recordings and samples here")
    parser.add_argument("--record", action="store_true", help=f"also write {PAGE.name}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        soak = _soak_scheduler if options.requests else _soak
        table, failed = soak(folder.resolve(), options)
    print(table.markdown())
    if options.record:
        kind = "-requests" if options.requests else ""
        kind += "-without-plugin" if options.without_plugin else ""
        record(PAGE, table.markdown(), f"soak{kind}")
    return int(failed > 0)


def _soak(folder: Path, options: argparse.Namespace) -> tuple[Table, int]:
    (folder / "config.json").write_text(json.dumps(tiny_llama(LONGEST)), encoding="utf-8")
    endpoint = f"ipc://{folder}/events"
    plugin = {"policy": POLICIES[options.policy], "record": str(folder / "recording")}
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}
    loaded = (
        *("--scheduler-cls", "kvscope.vllm_plugin.KvscopeScheduler"),
        *("--additional-config", json.dumps({"kvscope": plugin})),
    )
    launch = Launch(
        str(folder),
        BLOCK,
        BLOCKS,
        max_model_len=LONGEST,
        flags=(
            *(() if options.without_plugin else loaded),
            *("--kv-events-config", json.dumps(events)),
        ),
    )
    listen = [sys.executable, "-m", "kvscope", "record", "--kv-events", endpoint]
    outside = folder / "events.jsonl"
    with VllmServer(launch, with_vllm(), log_path=str(folder / "vllm.log")) as server:
        with (folder / "record.log").open("w") as log:
            listener = subprocess.Popen([*listen, "-o", str(outside)], stderr=log, cwd=ROOT)
        while "listening" not in (folder / "record.log").read_text():  # blocks before are unknown
            if listener.poll() is not None:
                raise RuntimeError((folder / "record.log").read_text())
            time.sleep(0.1)
        traffic = Traffic(server.endpoint, str(folder), options)
        samples = _watch(traffic, listener.pid, options.minutes * 60)
        (folder / "samples.json").write_text(json.dumps(samples), encoding="utf-8")
        listener.send_signal(signal.SIGINT)
        listener.wait(60)
    within = sum(
        len(path.read_bytes().splitlines()) for path in (folder / "recording").glob("*.jsonl")
    )
    broken = "has failed" in (folder / "vllm.log").read_text(errors="replace")
    print((folder / "record.log").read_text().strip())
    rows = [[name, *_growth(readings)] for name, readings in samples.items()]
    from_events = len(outside.read_bytes().splitlines())
    flags = " --without-plugin" if options.without_plugin else f" --policy {options.policy}"
    flags += " --report" if options.report else ""
    recorded = f"the plugin {'failed' if broken else 'recorded'} {within:,}, "
    described = (
        f"`python -m benchmarks.soak --minutes {options.minutes:g}{flags}`: {traffic.served:,}"
        f" requests of {traffic.conversations.begun:,} conversations, {options.in_flight} in"
        f" flight, {traffic.failed:,} failed; {'' if options.without_plugin else recorded}KV-cache"
        f" events {from_events:,} requests."
    )
    policy = "without the plugin" if options.without_plugin else f"under {options.policy}"
    title = f"Memory in {options.minutes:g} minutes of vLLM {policy}"
    times = [f"MiB at {options.minutes * third / 3:g} min" for third in (1, 2, 3)]
    columns = ("process", *times, "MiB/hour in the last third (95 % CI)")
    return Table(title, described, columns, rows), traffic.failed + broken


def _soak_scheduler(folder: Path, options: argparse.Namespace) -> tuple[Table, int]:
    """Serve requests of few turns in the scheduler alone; return its memory by requests served."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    (folder / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    plugin = {"policy": POLICIES[options.policy], "record": str(folder), "clock": "requests"}
    scheduler = scheduler_without_model(
        str(folder), BLOCK, BLOCKS, None if options.without_plugin else plugin
    )
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    conversations = Conversations(options.conversations, end=NEW)
    every = options.requests // SAMPLES
    levels = []
    for number in range(1, options.requests + 1):
        session, prompt, _ = conversations.next_turn()
        hints = {"kvscope_type": "chat", "kvscope_arrival_s": number * GAP_S}
        params = SamplingParams(max_tokens=1, ignore_eos=True, extra_args=hints)
        name = str(number)
        scheduler.add_request(
            Request(name, prompt, params, None, block_hasher=hasher, session_id=session)
        )
        while scheduler.requests:
            planned = scheduler.schedule()
            done = [] if scheduler.requests[name].is_prefill_chunk else [7]
            result = ModelRunnerOutput([name], {name: 0}, sampled_token_ids=[done])
            scheduler.update_from_output(planned, result)
        conversations.answered(session, prompt)
        if number % every == 0:
            levels.append(_resident_mib(os.getpid()))
    broken = any(observer.broken for observer in getattr(scheduler, "kvscope", ()))
    flags = " --without-plugin" if options.without_plugin else f" --policy {options.policy}"
    described = (
        f"`python -m benchmarks.soak --requests {options.requests}{flags}`:"
        f" {conversations.begun:,} conversations, a request every {GAP_S:g} s of the requests'"
        f" clock{', the plugin failed' if broken else ''}."
    )
    columns = [f"MiB at {every * (sample + 1):,}" for sample in range(SAMPLES)]
    policy = "without the plugin" if options.without_plugin else f"under {options.policy}"
    title = f"Memory of vLLM's scheduler without a model, {policy}"
    cells = [f"{level:,.1f}" for level in levels]
    return Table(title, described, ("process", *columns), [["scheduler", *cells]]), int(broken)


class Conversations:
    """Conversations that share system prompts, alive so many at a time; outputs are not carried."""

    def __init__(self, alive: int, seed: int = 5, end: float = END) -> None:
        self.begun = 0
        self._end = end
        self._random = random.Random(seed)
        self._heads = [self._tokens(160) for _ in range(HEADS)]
        self._waiting = [self._new() for _ in range(alive)]

    def _tokens(self, mean: float) -> list[int]:
        count = 1 + int(self._random.expovariate(1 / mean))
        return [self._random.randrange(VOCABULARY) for _ in range(min(count, LONGEST // 3))]

    def _new(self) -> tuple[str, list[int]]:
        self.begun += 1
        prompt = self._random.choice(self._heads) + self._tokens(FIRST_TOKENS)
        return f"conversation {self.begun}", prompt

    def next_turn(self) -> tuple[str, list[int], int]:
        """Return session, prompt and output tokens of some conversation's next request."""
        session, prompt = self._waiting.pop(self._random.randrange(len(self._waiting)))
        return session, prompt, 1 + min(int(self._random.expovariate(1 / OUTPUT_TOKENS)), 200)

    def answered(self, session: str, prompt: list[int]) -> None:
        """Continue a conversation after an answer, or begin another."""
        longer = prompt + self._tokens(TURN_TOKENS)
        over = self._random.random() < self._end or len(longer) > LONGEST * 3 // 4
        self._waiting.append(self._new() if over else (session, longer))


class Traffic:
    """Threads that send conversations as fast as they are answered; `stop` ends them."""

    def __init__(self, endpoint: Endpoint, model: str, options: argparse.Namespace) -> None:
        self.served = self.failed = 0
        self.stop = threading.Event()
        self.conversations = Conversations(options.conversations)
        self._endpoint, self._model = endpoint, model
        self._more = {"kv_cache_report_mode": "full"} if options.report else {}
        self._lock = threading.Lock()
        self.threads = [threading.Thread(target=self._run) for _ in range(options.in_flight)]
        for thread in self.threads:
            thread.start()

    def _run(self) -> None:
        xargs = {"kvscope_type": "chat", **self._more}
        while not self.stop.is_set():
            with self._lock:
                session, prompt, outputs = self.conversations.next_turn()
            answer = self._endpoint.complete(
                completion(self._model, prompt, outputs, xargs=xargs, session=session)
            )
            with self._lock:
                self.served += not answer.error
                self.failed += bool(answer.error)
                self.conversations.answered(session, prompt)


def _watch(traffic: Traffic, listener: int, seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Return (seconds, MiB) of each process while there is traffic, by name."""
    samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
    start_s = time.monotonic()
    try:
        while (now_s := time.monotonic() - start_s) < seconds:
            for pid in _descendants(os.getpid()):
                name = "kvscope record" if pid == listener else _role(pid)
                if name:
                    samples[name].append((now_s, _resident_mib(pid)))
            time.sleep(SAMPLE_S)
    finally:
        traffic.stop.set()
        for thread in traffic.threads:
            thread.join()
    return dict(samples)


def _role(pid: int) -> str | None:
    """Return what a process of vLLM's is, None for helpers."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    if b"EngineCore" in words:
        return "vLLM's engine"
    if b"api_server" in words and b"guard.py" not in words:
        return "vLLM's API server"
    return None


def _descendants(pid: int) -> list[int]:
    """Return the processes below a process."""
    below = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return below + [pid for child in below for pid in _descendants(child)]


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def _growth(readings: list[tuple[float, float]]) -> list[str]:
    """Return the memory after each third of the time, and the slope in the last one."""
    times_s, mib = np.array(readings).T
    thirds = [int(np.searchsorted(times_s, times_s[-1] * third / 3)) for third in (1, 2, 3)]
    levels = [f"{mib[at]:,.1f}" for at in thirds]
    hours, mib = times_s[thirds[1] :] / 3600, mib[thirds[1] :]
    slope, level = np.polyfit(hours, mib, 1)
    residuals = mib - (level + slope * hours)
    together = np.corrcoef(residuals[1:], residuals[:-1])[0, 1] if residuals.any() else 0.0
    independent = max(len(mib) * (1 - together) / (1 + together), 3.0)
    error = residuals.std() / (hours.std() * math.sqrt(independent - 2))
    return [*levels, f"{slope:+.1f} ± {1.96 * error:.1f}"]


if __name__ == "__main__":
    sys.exit(main())
