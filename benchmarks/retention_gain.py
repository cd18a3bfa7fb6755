"""Measure what times to live gain over LRU where `kvscope retention` chooses them.

At the capacities where LRU reaches 25, 50 and 75 % of the infinite cache's hit rate: token hit
rates of the last quarter of the requests in an idle cache, and where that gains, on the simulated
engine. KVSCOPE_TRACES names the folder of published traces; without it only samples and generated
traces are judged. `--record` writes the table into docs/evidence/retention.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import ROOT
from benchmarks.held_out import LEVELS, HeldOut, published, samples
from benchmarks.processes import note
from benchmarks.table import Table, record
from kvscope.core.hits import standard
from kvscope.latency.profile import PRESETS
from kvscope.policies.soft_ttl import PAUSE_TTL
from kvscope.retention.advice import RetentionAdvice, RetentionTrial, advise
from kvscope.synth.agent import Agent
from kvscope.synth.profiles import write_jsonl

PAGE = ROOT / "docs" / "evidence" / "retention.md"
HINTED = 4_000
SEEDS = (1, 2, 3, 4, 5)
PROFILE = PRESETS["llama2-7b-a100"]


def hinted(folder: Path) -> Iterator[HeldOut]:
    """Yield agent sessions that state every pause and end."""
    for seed in SEEDS:
        path = folder / f"agent-{seed}.jsonl.gz"
        write_jsonl(Agent(hint_share=1.0).generate(requests=HINTED, seed=seed), path)
        yield HeldOut(f"agent, seed {seed}", path)


def rows(trace: HeldOut) -> Iterator[list[str]]:
    """Yield a row a capacity and kind of advice; of hinted traces that on their hints alone."""
    for level, capacity in zip(LEVELS, trace.capacities, strict=True):
        every = advise(trace.prompts, trace.traffic, trace.past, standard(), capacity, PROFILE)
        for advice in every[-1:]:
            yield [
                f"{trace.name}, {capacity:,} blocks ({level:.0%})",
                stated(advice),
                *cells(advice.idle),
                *(cells(advice.engine) if advice.engine else ["–"] * 3),
                p95(advice.engine),
                "yes" if advice.advised else "keep LRU",
            ]


def stated(advice: RetentionAdvice) -> str:
    """Return what was chosen."""
    if advice.of == "categories":
        return "TTLs by category"
    return f"pins of {advice.params[PAUSE_TTL]:g} s"


def cells(trial: RetentionTrial) -> list[str]:
    """Return LRU's rate, the other one, and the gain in percentage points."""
    gain, low, high = (100 * x for x in (trial.gain.value, trial.gain.low, trial.gain.high))
    rates = (100 * trial.lru_token_hit_rate, 100 * trial.token_hit_rate)
    return [*(f"{rate:.1f}" for rate in rates), f"{gain:+.1f} [{low:.1f}, {high:.1f}]"]


def p95(trial: RetentionTrial | None) -> str:
    """Return the p95 TTFT of LRU and of the other one."""
    if trial is None or trial.lru_p95_s is None or trial.p95_s is None:
        return "–"
    return f"{trial.lru_p95_s:.2f} s, {trial.p95_s:.2f} s"


def table() -> Table:
    """Return the table of all traces."""
    every: list[list[str]] = []
    with TemporaryDirectory() as folder:
        for trace in chain(hinted(Path(folder)), published(), samples()):
            note(trace.name)
            every += rows(trace)
    return Table(
        "Token hit rates (%) of the last quarter, against LRU",
        "Capacities are those at which LRU has 25, 50 and 75 % of the ideal hits. Gains in"
        " percentage points with their 95 % CI. The engine is replayed where the idle cache gains;"
        f" p95 TTFT of LRU and of the other, with {PROFILE.name}.",
        (
            "trace",
            "stated",
            "LRU",
            "soft-ttl",
            "gain",
            "engine: LRU",
            "soft-ttl",
            "gain",
            "p95 TTFT",
            "advised",
        ),
        every,
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help=f"also write {PAGE.name}")
    options = parser.parse_args()
    text = "\n".join(["`python -m benchmarks.retention_gain`", "", table().markdown()])
    print(text)
    if options.record:
        record(PAGE, text, "gains")


if __name__ == "__main__":
    main()
