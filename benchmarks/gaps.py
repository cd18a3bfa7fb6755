"""What online policies gain of what there is to gain: `python -m benchmarks.gaps`.

At the capacities where LRU reaches 25, 50 and 75 % of the infinite cache's hit rate: which share of
the way from LRU to belady (uncached tokens) and from LRU to tail-belady (uncached tokens beyond xi:
TEL) each policy goes. Judged on the requests after the first 40 %, with 95 % intervals of 1,000
draws of whole conversations. KVSCOPE_TRACES names the folder of published traces; without it only
samples are replayed. `--record` writes the tables into docs/evidence/gittins.md.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import ROOT
from benchmarks.gaps_ablation import ablation
from benchmarks.gaps_engine import in_engine
from benchmarks.gaps_unseen import unseen
from benchmarks.judged import Judged
from benchmarks.measure import note
from benchmarks.table import Table, record
from kvscope.ingest.formats.base import ReadOptions
from kvscope.policies.registry import POLICIES

PAGE = ROOT / "docs" / "evidence" / "gittins.md"
SAMPLES = ("to-c", "to-b", "agent", "birth-death", "regime-change")
MOONCAKE, SESSIONS = "mooncake_conversation.jsonl.gz", "weka_agent_sessions.jsonl.gz"
SESSIONS_PER_S = 1 / 200
LEVELS = (0.25, 0.5, 0.75)
XI_TOKENS = (8192, 16384)
SAME_AS_LRU = ("lru", "ttl")


def gaps(of: Judged) -> Table:
    """Each online policy's shares of the gaps."""
    online = [x.name for x in POLICIES if not x.hindsight and x.name not in SAME_AS_LRU]
    capacities = [of.curve.capacity_for(level * of.curve.ideal) for level in LEVELS]
    goals = [(0, "belady"), *((xi, "tail-belady") for xi in XI_TOKENS)]
    asked = [
        (name, xi, capacity)
        for xi, best in goals
        for capacity in capacities
        for name in ("lru", best, *online)
    ]
    for name in dict.fromkeys(name for name, _, _ in asked):
        of.uncached(name, 0, 1)  # compiled before threads ask for it
    with ThreadPoolExecutor() as pool:
        done = dict(zip(asked, pool.map(lambda one: of.uncached(*one), asked), strict=True))
    total = int(of.input_tokens.sum())

    def hit_rate(name: str, capacity: int) -> str:
        return f"{1 - done[name, 0, capacity].sum() / total:.1%}"

    def share(name: str, xi: int, best: str, at: int) -> str:
        return of.closed(xi, *(done[one, xi, at] for one in ("lru", best, name)))

    rows = [
        [name, *(share(name, xi, best, at) for xi, best in goals for at in capacities)]
        for name in online
    ]
    rates = ", ".join(
        f"{hit_rate('lru', at)} to {hit_rate('belady', at)} at {at:,} blocks" for at in capacities
    )
    return Table(
        f"{of.name}: share of the gap to the optimum closed",
        f"{len(of.prompts.leaf):,} requests; {of.conversations:,} conversations are counted."
        f" Hit rates of lru and belady: {rates}.",
        (
            "policy",
            *(f"hits, {level:.0%}" for level in LEVELS),
            *(f"TEL {xi // 1024}k, {level:.0%}" for xi in XI_TOKENS for level in LEVELS),
        ),
        rows,
    )


def tables() -> Iterator[Table]:
    """Of the published traces, where they are, and of the samples."""
    named = os.environ.get("KVSCOPE_TRACES")
    if named:
        folder = Path(named)
        note("mooncake")
        mooncake = Judged("Mooncake conversation", folder / MOONCAKE)
        yield gaps(mooncake)
        yield ablation(mooncake)
        note("agent sessions")
        read = ReadOptions(session_arrivals=SESSIONS_PER_S)
        sessions = Judged("Agent sessions", folder / SESSIONS, read)
        yield gaps(sessions)
        yield ablation(sessions)
        note("agent sessions in the engine")
        yield in_engine(sessions)
    for name in SAMPLES:
        note(name)
        of = Judged(f"Sample {name}", ROOT / "sample_traces" / f"{name}.jsonl.gz")
        yield gaps(of)
        if name == "regime-change":
            yield ablation(of)
    yield unseen()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gaps", description=__doc__)
    parser.add_argument("--record", action="store_true", help=f"also write {PAGE.name}")
    told = parser.parse_args()
    words = "\n".join(["`python -m benchmarks.gaps`", "", *(one.markdown() for one in tables())])
    print(words)
    if told.record:
        record(PAGE, words, "gaps")


if __name__ == "__main__":
    main()
