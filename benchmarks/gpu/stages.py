"""The stages that run where the GPU is, each with a limit and a file of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import ROOT
from benchmarks.gpu.models import write_model

if TYPE_CHECKING:
    from kvscope.validate.validate import PolicyRun

LIMIT_S = 240.0
TORCH_MODELS = ("llama3-8b", "qwen2.5-14b", "qwen3-30b-a3b")
LATENT_MODEL, WINDOWS_MODEL = "deepseek-v2-lite", "gemma3-4b"
POLICY_MODEL = "llama3-8b"
ADVICE = "policy.toml"
_SEQUENTIAL, _IN_FLIGHT = "--sequential", "--in-flight 8"
TIER_GIB = 8
_LIMITS = "--max-num-seqs 1024 --max-num-batched-tokens 8192"  # vLLM's own on such GPUs
_LOGGED = re.compile(
    r"KV cache memory|KV cache size|Maximum concurrency|[Mm]odel loading took|num_gpu_blocks|"
    r"[Cc]uda ?graph|CUDA graph|backend|torch.compile|block.size|weights took|profiling|"
    r"Initializing"
)


class OutOfTimeError(Exception):
    """A stage has reached its limit."""


class Run:
    """One stage: its findings so far, in a file that is written after every step."""

    def __init__(self, stage: str, folder: Path, *, small: bool, limit_s: float) -> None:
        self.small, self.work = small, folder / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self._until, self._path = time.monotonic() + limit_s, folder / f"{stage}.json"
        self.findings: dict[str, Any] = {"stage": stage, "steps": {}, "failed": {}}

    @contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield a dictionary for a step's findings; a failure is noted, and the next step goes on.

        Raises OutOfTimeError where no time is left.
        """
        if time.monotonic() > self._until:
            self.findings["failed"][name] = "no time left"
            self.save()
            raise OutOfTimeError
        print(f"{name} ...", flush=True)
        before, findings = time.monotonic(), self.findings["steps"].setdefault(name, {})
        try:
            yield findings
        except Exception as error:  # noqa: BLE001  (the other steps are worth having alone)
            self.findings["failed"][name] = f"{type(error).__name__}: {error}"[-1500:]
            print(f"{name} failed: {self.findings['failed'][name]}", flush=True)
        findings["took_s"] = round(time.monotonic() - before, 1)
        self.save()

    def save(self) -> None:
        """Write the findings."""
        self._path.write_text(json.dumps(self.findings, indent=1), encoding="utf-8")

    def left_s(self) -> float:
        """Return the seconds until the limit."""
        return max(self._until - time.monotonic(), 1.0)

    def command(self, *words: str, timeout_s: float | None = None) -> Any:
        """Run a Python command in the stage's folder, and return the JSON that it prints."""
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.work,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s or self.left_s(),
            check=False,
        )
        if not done.stdout.strip().startswith("{"):
            said = " | ".join((done.stderr or done.stdout).splitlines()[-12:])
            raise RuntimeError(f"exit code {done.returncode}: {said}")
        return json.loads(done.stdout)

    def kvscope(self, words: str, *more: str) -> Any:
        """Run a command of kvscope, and return its JSON document."""
        return self.command("-m", "kvscope", *words.split(), *more, "--json")


def _environment() -> dict[str, str]:
    paths = (path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path)
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), *paths))}


def torch_alone(run: Run) -> None:
    """Measure rates, then prefill and decoding of a decoder of plain torch, model by model."""
    with run.step("rates") as findings:
        findings.update(run.command(str(Path(__file__).with_name("rates.py"))))
    for name in TORCH_MODELS:
        with run.step(name) as findings:
            folder = write_model(run.work, name, small=run.small)
            longest = 1024 if run.small else 8192
            findings.update(
                run.kvscope(
                    f"calibrate --backend torch --model {folder} --max-tokens {longest}"
                    f" --repeats 3 --output {name}.toml"
                )
            )


def pool(run: Run, model: str) -> None:
    """Start vLLM with a model as an operator would: its pool, its log, how long it takes."""
    if run.small and model == LATENT_MODEL:
        return  # vLLM has no latent attention for CPUs
    with run.step(model) as findings, _server(run, model, findings):
        pass


@contextmanager
def _server(
    run: Run,
    name: str,
    findings: dict[str, Any],
    blocks: int | None = None,
    chosen: PolicyRun | None = None,
    flags: tuple[str, ...] = (),
) -> Iterator[str]:
    """Start vLLM with random weights and its own defaults but for `blocks`; yield its address.

    Notes its pool, its options, and what its log says.
    """
    from kvscope.serving.client import block_pool
    from kvscope.serving.interpreter import with_vllm
    from kvscope.serving.server import Launch, VllmServer

    has = with_vllm(sys.executable)
    run.findings["engine"] = {"vllm": has.vllm, "torch": has.torch, "device": has.device_name}
    launch = Launch(
        str(write_model(run.work, name, small=run.small)),
        0,
        blocks,
        flags=("--enable-logging-iteration-details", *flags, *(chosen.flags if chosen else ())),
        environment=dict(chosen.environment) if chosen else {},
    )
    log = run.work / f"{run.findings['stage']}-{len(run.findings['steps'])}.log"
    server = VllmServer(launch, has, start_s=run.left_s(), log_path=str(log))
    before = time.monotonic()
    try:
        with server:
            findings["start_s"] = round(time.monotonic() - before, 1)
            findings["options"] = launch.options(has)
            has_pool = block_pool(server.endpoint.metrics())
            findings["pool"] = has_pool and [has_pool.usable_blocks, has_pool.block_size]
            run.save()
            yield server.endpoint.url
    finally:
        text = log.read_text(encoding="utf-8", errors="replace").splitlines()
        findings["log"] = [line[-400:] for line in text if _LOGGED.search(line)][:60]
        findings["tail"] = [line[-300:] for line in text[-25:]]


def _traces(run: Run) -> tuple[int, int]:
    """Write a trace where a policy pays, to learn from and to serve; return blocks, and times.

    Times: how many times longer its prompts are than those of the run on a CPU.
    """
    from benchmarks import live_gittins

    times, block = (1, 32) if run.small else (4, 16)
    live_gittins.write_traces(run.work, 60 if run.small else 300, times=times, block=block)
    return live_gittins.BLOCKS * times * 32 // block, times


def lru(run: Run) -> None:
    """Calibrate vLLM, let `tune` recommend a policy for the trace, and replay it with LRU."""
    from benchmarks import live_gittins
    from kvscope.latency.file import read_profile

    blocks, times = _traces(run)
    with run.step("lru") as findings, _server(run, POLICY_MODEL, findings, blocks) as url:
        findings["calibration"] = run.kvscope(
            f"calibrate --url {url} --max-tokens {1024 if run.small else 8192} --repeats 2"
        )
        # the time of the uncached tokens that separate the policies
        slo_s = read_profile(run.work / "latency.toml").ttft_s(live_gittins.SLO_TOKENS * times, 0)
        findings["tuned"] = run.kvscope(
            f"tune training.jsonl --policy gittins --capacity-blocks {blocks} --percentile p50"
            f" --slo {float(slo_s) * 1e3:.1f}ms --latency latency.toml --output {ADVICE}"
        )["recommendation"]
        _replay(run, findings, url, "lru", _SEQUENTIAL)


def lru_in_flight(run: Run) -> None:
    """Replay the trace with LRU and requests in flight, by the profile of stage `lru`."""
    blocks, _ = _traces(run)
    with run.step("lru in flight") as findings, _server(run, POLICY_MODEL, findings, blocks) as url:
        _replay(run, findings, url, "lru", _IN_FLIGHT)


def recommended(run: Run, pace: str) -> None:
    """Replay the trace at a pace with the policy that stage `lru` has recommended."""
    from kvscope.tuning.file import read_policy_file
    from kvscope.validate.validate import recommended_run

    blocks, _ = _traces(run)
    advice = read_policy_file(run.work / ADVICE)
    chosen = recommended_run(
        advice, run.work / ADVICE, overlapped=not run.small, trace_clock=pace == _SEQUENTIAL
    )
    with (
        run.step(f"{advice.policy.name} {pace}") as findings,
        _server(run, POLICY_MODEL, findings, blocks, chosen) as url,
    ):
        _replay(run, findings, url, "recommendation", pace)


def tier(run: Run) -> None:
    """Replay the trace with LRU and CPU memory below the pool, beside `simulate --offload`."""
    if run.small:
        return  # vLLM offloads from GPUs alone
    blocks, _ = _traces(run)
    with run.step("predicted") as predicted:
        pool_gib = blocks * 16 * 131_072 / 2**30
        predicted["results"] = run.kvscope(
            f"simulate served.jsonl --model {POLICY_MODEL} --policy lru --warmup 20%"
            f" --tiers hbm={pool_gib}GiB,dram={TIER_GIB}GiB --offload vllm@0.32"
            f" --latency latency.toml {_LIMITS}"
        )["results"]
    flags = ("--kv-offloading-size", f"{TIER_GIB}")
    with (
        run.step("lru with a tier") as findings,
        _server(run, POLICY_MODEL, findings, blocks, flags=flags) as url,
    ):
        _replay(run, findings, url, "lru", _SEQUENTIAL)
        (of_pool,), (simulated,) = findings[_SEQUENTIAL]["runs"], predicted["results"]
        off = abs(simulated["hit_tokens"] - of_pool["measured"]["hit_tokens"])
        of_pool |= {
            "policy": f"lru, {TIER_GIB} GiB of CPU memory",
            "predicted": simulated | {"answer_ms": None},
            "mismatched_tokens": off,
        }


def _replay(run: Run, findings: dict[str, Any], url: str, policies: str, pace: str) -> None:
    # In flight a second run tells the noise; a policy that learns has changed by then.
    repeats = 2 if pace == _IN_FLIGHT and policies == "lru" else 1
    findings[pace] = run.kvscope(
        f"validate served.jsonl --url {url} --replay {policies} {pace} --repeats {repeats}"
        f" --recommendation {ADVICE} --latency latency.toml {_LIMITS}"
    )
    run.save()


def fleet(run: Run) -> None:
    """Put the real SGLang router before two engines; compare decisions and hits."""
    with run.step("two engines") as findings:
        findings.update(run.command("-m", "benchmarks.live_fleet", "--json", "--requests", "100"))


STAGES: dict[str, Callable[[Run], None]] = {
    "torch": torch_alone,
    "lru": lru,
    "lru-in-flight": lru_in_flight,
    "recommended": partial(recommended, pace=_SEQUENTIAL),
    "recommended-in-flight": partial(recommended, pace=_IN_FLIGHT),
    "tier": tier,
    "latent": partial(pool, model=LATENT_MODEL),
    "windows": partial(pool, model=WINDOWS_MODEL),
    "fleet": fleet,
}


def run_stage(name: str, folder: Path, *, small: bool, limit_s: float = LIMIT_S) -> bool:
    """Run one stage into `folder`; return whether all of its steps succeeded."""
    folder.mkdir(parents=True, exist_ok=True)
    # What travels has no flashinfer, with which vLLM would sample.
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    run = Run(name, folder.resolve(), small=small, limit_s=limit_s)
    try:
        STAGES[name](run)
    except OutOfTimeError:
        pass
    except ImportError as error:
        run.findings["failed"][name] = f"{error}: this interpreter lacks what the stage needs"
    run.save()
    return not run.findings["failed"]
