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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import ROOT
from benchmarks.gpu.models import write_model

if TYPE_CHECKING:
    from kvscope.validate.validate import PolicyRun

LIMIT_S = 240.0
TORCH_MODELS = ("llama3-8b", "qwen2.5-14b", "qwen3-30b-a3b")
LATENT_MODEL = "deepseek-v2-lite"
VLLM_MODELS = ("gemma3-4b", LATENT_MODEL, "llama3-8b")
"""Sliding windows; latent attention with experts; dense, which the stage `policy` starts too."""
POLICY_MODEL = "llama3-8b"
IN_FLIGHT = 8
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
        self.small, self.work = small, folder / f"{stage}-work"
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


def vllm_alone(run: Run) -> None:
    """Start vLLM as an operator would, model by model: its pool, its log, how long it takes."""
    for name in VLLM_MODELS:
        if run.small and name == LATENT_MODEL:
            continue  # vLLM has no latent attention for CPUs
        with run.step(name) as findings, _server(run, name, findings):
            pass


@contextmanager
def _server(
    run: Run,
    name: str,
    findings: dict[str, Any],
    blocks: int | None = None,
    chosen: PolicyRun | None = None,
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
        flags=("--enable-logging-iteration-details", *(chosen.flags if chosen else ())),
        environment=dict(chosen.environment) if chosen else {},
    )
    log = run.work / f"{len(run.findings['steps'])}.log"
    server = VllmServer(launch, has, start_s=run.left_s(), log_path=str(log))
    before = time.monotonic()
    try:
        with server:
            findings["start_s"] = round(time.monotonic() - before, 1)
            findings["options"] = launch.options(has)
            pool = block_pool(server.endpoint.metrics())
            findings["pool"] = pool and [pool.usable_blocks, pool.block_size]
            run.save()
            yield server.endpoint.url
    finally:
        text = log.read_text(encoding="utf-8", errors="replace").splitlines()
        findings["log"] = [line[-400:] for line in text if _LOGGED.search(line)][:60]
        findings["tail"] = [line[-300:] for line in text[-25:]]


def policy(run: Run) -> None:
    """Replay a trace where a policy pays: with LRU, calibrated before; then with the policy."""
    from benchmarks import live_gittins
    from kvscope.latency.file import read_profile
    from kvscope.tuning.file import read_policy_file
    from kvscope.validate.validate import recommended_run

    times, block = (1, 32) if run.small else (4, 16)
    blocks = live_gittins.BLOCKS * times * 32 // block
    live_gittins.write_traces(run.work, 60 if run.small else 240, times=times, block=block)
    best = run.work / "policy.toml"

    def replayed(findings: dict[str, Any], url: str, policies: str, pace: str) -> None:
        findings[pace] = run.kvscope(
            f"validate served.jsonl --url {url} --policies {policies} {pace}"
            " --recommendation policy.toml --latency latency.toml"
            " --max-num-seqs 1024 --max-num-batched-tokens 8192"  # vLLM's own on such GPUs
        )
        run.save()

    with run.step("lru") as findings, _server(run, POLICY_MODEL, findings, blocks) as url:
        findings["calibration"] = run.kvscope(
            f"calibrate --url {url} --max-tokens {1024 if run.small else 8192} --repeats 2"
        )
        # the time of the uncached tokens that separate the policies
        slo_s = read_profile(run.work / "latency.toml").ttft_s(live_gittins.SLO_TOKENS * times, 0)
        findings["tuned"] = run.kvscope(
            f"tune training.jsonl --policies gittins --capacity-blocks {blocks} --percentile p50"
            f" --slo {float(slo_s) * 1e3:.1f}ms --latency latency.toml --output {best.name}"
        )["recommendation"]
        replayed(findings, url, "lru", "--sequential")
        replayed(findings, url, "lru", f"--in-flight {IN_FLIGHT}")
    if not best.exists():
        return
    advice = read_policy_file(best)
    for pace in ("--sequential", f"--in-flight {IN_FLIGHT}"):
        chosen = recommended_run(
            advice, best, overlapped=not run.small, trace_clock=pace == "--sequential"
        )
        with (
            run.step(f"{advice.policy.name} {pace}") as findings,
            _server(run, POLICY_MODEL, findings, blocks, chosen) as url,
        ):
            replayed(findings, url, "recommendation", pace)


def fleet(run: Run) -> None:
    """Put the real SGLang router before two engines; compare decisions and hits."""
    with run.step("two engines") as findings:
        findings.update(run.command("-m", "benchmarks.live_fleet", "--json", "--requests", "100"))


STAGES: dict[str, Callable[[Run], None]] = {
    "torch": torch_alone,
    "vllm": vllm_alone,
    "policy": policy,
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
