"""Measure the guard of `gittins`: what it keeps of its best candidate's gain, and what it loses.

Each trace at the capacities where LRU gets 10, 25, 50, 75 and 90 % of the hits of an infinite
cache, for hits (xi 0) and for tokens beyond xi. Gains are counted after the first 40 % of the
requests, losses over all of them. `--development` takes the traces that the guard was made on;
KVSCOPE_TRACES names the folder of published traces. `--record` writes the tables into
docs/evidence/gittins.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.held_out import (
    FEWEST_CONVERSATIONS,
    LEAST_GAP,
    Floats,
    HeldOut,
    generated,
    published,
)
from benchmarks.optimality_gap import PAGE
from benchmarks.processes import note
from benchmarks.table import Table, record
from kvscope.core.arrays import Int64s
from kvscope.core.hits import standard
from kvscope.learning import evidence
from kvscope.learning.evidence import Goal, GuardEvidence, decided, note_request
from kvscope.learning.offline import shadow_replays
from kvscope.learning.offline.shadow_replays import Computed
from kvscope.learning.returns.formulas import LRU, NEED, OWN
from kvscope.learning.returns.offline import class_tables, guarded_shadows
from kvscope.replay.curve import lru_curve

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
XI_TOKENS = (0, 1024, 2048, 8192)
DEVELOPMENT = (
    ("to-c", 3_000, 21),
    ("to-c", 6_000, 22),
    ("to-c", 12_000, 23),
    ("to-b", 6_000, 21),
    ("to-b", 12_000, 22),
    ("agent", 1_000, 21),
    ("agent", 2_000, 22),
    ("agent", 3_000, 23),
    ("birth-death", 4_000, 21),
    ("birth-death", 8_000, 22),
    ("regime-change", 2_000, 21),
    ("regime-change", 4_000, 22),
    ("regime-change", 6_000, 23),
    ("retrieval", 3_000, 21),
    ("retrieval", 6_000, 22),
    ("scan", 3_000, 21),
    ("scan", 6_000, 22),
    ("alternating", 4_000, 21),
    ("alternating", 8_000, 22),
    ("time-of-day", 4_000, 21),
    ("time-of-day", 8_000, 22),
    ("shared-prefix-groups", 4_000, 21),
)
"""(profile, requests, seed) of traces that the guard's numbers were chosen on."""
JUDGING = (
    ("to-c", 2_000, 601),
    ("to-c", 5_000, 602),
    ("to-c", 10_000, 603),
    ("to-b", 5_000, 601),
    ("to-b", 15_000, 602),
    ("agent", 1_500, 601),
    ("agent", 2_500, 602),
    ("birth-death", 3_000, 601),
    ("birth-death", 6_000, 602),
    ("regime-change", 3_000, 601),
    ("regime-change", 5_000, 602),
    ("retrieval", 2_500, 601),
    ("retrieval", 5_000, 602),
    ("scan", 2_500, 601),
    ("scan", 5_000, 602),
    ("alternating", 3_000, 601),
    ("alternating", 6_000, 602),
    ("time-of-day", 3_000, 601),
    ("time-of-day", 6_000, 602),
    ("shared-prefix-groups", 3_000, 601),
)
"""The same of traces that judge it, beside the published ones."""
SLO_XI = 4  # the SLO's tokens, in times of xi
UTILIZATIONS = (0.5, 0.8)


class Case(Struct):
    """One trace at one capacity: what LRU, need alone and the policy's own order compute.

    `real` are the tokens that each request computes under the guard, where it is replayed.
    """

    trace: str
    profile: str
    conversation: Int64s
    capacity: int
    level: int
    xi: int
    done: Computed
    end: GuardEvidence
    real: Floats

    @property
    def first(self) -> int:
        """The first request that is counted."""
        return len(self.done.tokens) * 2 // 5

    def beyond(self, tokens: Floats) -> Floats:
        """Return the tokens beyond xi."""
        return np.asarray(np.maximum(tokens - self.xi, 0.0))

    def gain(self, tokens: Floats) -> float:
        """Return the tokens beyond xi that LRU computes more, counted requests alone."""
        lru = self.beyond(self.done.tokens[:, LRU])
        return float((lru - self.beyond(tokens))[self.first :].sum())

    @property
    def best(self) -> float:
        """The gain of the best candidate in hindsight."""
        return max(self.gain(tokens) for tokens in self.done.tokens.T)

    @property
    def counts(self) -> bool:
        """Whether there is enough to gain for a share to say anything."""
        lru = self.beyond(self.done.tokens[:, LRU])[self.first :]
        losing = np.unique(self.conversation[self.first :][lru > 0])
        return len(losing) >= FEWEST_CONVERSATIONS and self.best > LEAST_GAP * lru.sum()

    def lost(self, tokens: Floats) -> float:
        """Return what is lost to LRU, as a share of all input tokens of computed prompts."""
        lru = self.beyond(self.done.tokens[:, LRU])
        return float((self.beyond(tokens) - lru).sum() / self.input_tokens)

    input_tokens: int = 1


def cases(trace: HeldOut) -> Iterator[Case]:
    """Yield a trace's cases."""
    note(trace.name)
    of, curve = trace.traffic, lru_curve(trace.prompts, standard())
    capacities = sorted({curve.capacity_for(level * curve.ideal) for level in LEVELS})
    shadows = guarded_shadows(of, class_tables(of))
    hits_of = partial(trace.replayed, "gittins")

    def one(at: tuple[int, int, int]) -> Case:
        level, capacity, xi = at
        policy = trace.bind("gittins", float(xi))
        hits = hits_of(xi, capacity).hit_blocks.astype(np.int64)
        return Case(
            trace=trace.name,
            profile=trace.name.split(",")[0],
            conversation=trace.prompts.conversation.astype(np.int64),
            capacity=capacity,
            level=level + len(LEVELS) - len(capacities),
            xi=xi,
            done=shadows.computed(policy, capacity),
            end=shadows.evidence(policy, capacity),
            real=(of.input_tokens - hits * of.block_size).astype(np.float64),
            input_tokens=int(of.input_tokens.sum()),
        )

    wanted = [
        (level, capacity, xi) for level, capacity in enumerate(capacities) for xi in XI_TOKENS
    ]
    with ThreadPoolExecutor() as pool:
        yield from pool.map(one, wanted)


Guard = Callable[[Case], Floats]
"""What each request computes under a guard."""


def judged(
    case: Case,
    candidates: tuple[int, ...] = (LRU, NEED, OWN),
    goal: Goal | None = None,
    begun: GuardEvidence | None = None,
) -> Floats:
    """Return the tokens of each request under the candidate in force, by its shadow."""
    columns = list(candidates)
    blocks, tokens = case.done.blocks[:, columns], case.done.tokens[:, columns]
    goal = goal or Goal(float(case.capacity), float(case.xi), 0.0, 0.0)
    known = (begun.discounted() if begun else GuardEvidence.none(len(columns))).each(
        np.ndarray.tolist
    )
    now, before_s, reached = decided(known, LRU), 0.0, list[float]()
    rows = zip(case.done.arrival_s.tolist(), blocks.tolist(), tokens.tolist(), strict=True)
    for arrival_s, of_blocks, of_tokens in rows:
        reached.append(of_tokens[now])
        note_request(known, goal, arrival_s - before_s, of_blocks, of_tokens)
        now, before_s = decided(known, now), arrival_s
    return np.array(reached)


@contextmanager
def changed(**numbers: float) -> Iterator[None]:
    """Judge by other numbers than the guard's."""
    before = {name: getattr(evidence, name) for name in numbers}
    vars(evidence).update(numbers)
    try:
        yield
    finally:
        vars(evidence).update(before)


def with_numbers(**numbers: float) -> Guard:
    """Return a guard with other numbers."""

    def guard(case: Case) -> Floats:
        with changed(**numbers):
            return judged(case)

    return guard


def sure(chance: float) -> float:
    """Return the number that stands for a chance of taking up what is no better."""
    return float(-2.0 * np.log(chance))


def share_table(known: list[Case], guards: dict[str, Guard]) -> Table:
    """Return a row for each guard: its shares of the best candidate's gain, and its losses."""
    rows = []
    for name, guard in guards.items():
        note(name)
        row = [name]
        for hits in (True, False):
            some = [case for case in known if (case.xi == 0) == hits]
            tokens = {id(case): guard(case) for case in some}
            counted = [case for case in some if case.counts]
            gains = np.array([case.gain(tokens[id(case)]) for case in counted])
            best = np.array([case.best for case in counted])
            lru = np.array([case.gain(np.full(len(case.done.tokens), case.xi)) for case in counted])
            level = np.array([case.level for case in counted])
            shares = np.clip(gains / best, -1.0, None)
            lost = np.array([case.lost(tokens[id(case)]) for case in some])
            row += [
                f"{(gains / lru).mean() / (best / lru).mean():.2f}",
                f"{shares.mean():.2f}",
                ", ".join(f"{shares[level == at].mean():.2f}" for at in range(len(LEVELS))),
                f"{-lost.max():.2%}",
                f"{(lost > 0.001).sum()} of {len(lost)}",
            ]
        rows.append(row)
    columns = [
        f"{goal}{what}"
        for goal in ("hits: ", "TEL: ")
        for what in ("share", "mean share", "by capacity", "least", "below −0.1 %")
    ]
    return Table(
        "What the guard keeps of its best candidate's gain",
        "*share*: mean reduction of LRU's tokens over the best candidate's in hindsight; *mean"
        " share*: of the single shares; *by capacity*: the same at 10, 25, 50, 75, 90 %; *least*:"
        " tokens below LRU's as a share of all input tokens, the worst case; the first row is"
        " replayed, the others are taken from shadows.",
        ("guard", *columns),
        rows,
    )


def waits_table(known: list[Case]) -> Table:
    """Return what the count of late requests changes, where prompts queue for one engine."""
    rows = []
    for utilization in UTILIZATIONS:
        for counted in (False, True):
            worse = better = late = cases_ = 0
            ratios = []
            for case in known:
                lru = case.done.tokens[:, LRU]
                if case.xi == 0:
                    continue
                at_s = case.done.arrival_s
                rate = float(lru.sum() / (at_s[-1] - at_s[0])) / utilization
                slo = float(SLO_XI * case.xi) if counted else 0.0
                goal = Goal(float(case.capacity), float(case.xi), slo, rate)
                tokens = judged(case, goal=goal)
                own, base = (_waits(of, at_s, rate)[case.first :] for of in (tokens, lru))
                p95 = [float(np.percentile(waits, 95)) for waits in (own, base)]
                ratios.append(p95[0] / max(p95[1], 1.0))
                worse += ratios[-1] > 1.05
                better += ratios[-1] < 0.95
                more = float(np.mean(own > SLO_XI * case.xi) - np.mean(base > SLO_XI * case.xi))
                late += more > 0.005
                cases_ += 1
            rows.append(
                [
                    f"{utilization:.0%}",
                    "yes" if counted else "no",
                    f"{np.mean(ratios):.2f}",
                    f"{max(ratios):.2f}",
                    f"{better} of {cases_}",
                    f"{worse}",
                    f"{late}",
                ]
            )
    return Table(
        "Requests that wait",
        "Prompts queue for an engine that LRU keeps busy for this share of the time. Tokens that"
        f" requests compute and wait for, against LRU; the SLO is {SLO_XI} ξ.",
        (
            "busy",
            "late requests count",
            "p95, mean ratio",
            "worst",
            "lower by 5 %",
            "higher by 5 %",
            "0.5 points more late",
        ),
        rows,
    )


def _waits(tokens: Floats, arrival_s: Floats, rate: float) -> Floats:
    """Return the tokens that each request computes and waits for."""
    waits, backlog, before_s = [], 0.0, float(arrival_s[0])
    for more, at_s in zip(tokens.tolist(), arrival_s.tolist(), strict=True):
        backlog = max(backlog - (at_s - before_s) * rate, 0.0) + more
        before_s = at_s
        waits.append(backlog)
    return np.array(waits)


def begun_table(known: list[Case], past: list[Case]) -> Table:
    """Return what evidence of other traffic of the same profile brings."""
    ends = {(case.profile, case.level, case.xi): case.end for case in past}

    def begun(case: Case) -> Floats:
        return judged(case, begun=ends[case.profile, case.level, case.xi])

    some = [case for case in known if (case.profile, case.level, case.xi) in ends]
    table = share_table(some, {"from nothing": judged, "from another seed's evidence": begun})
    return replace(
        table,
        title="A guard that begins with evidence",
        description="The same, in shadows: from nothing, and with what a guard knew at the end of"
        " another trace of the same profile.",
    )


def tables(seeds: tuple[tuple[str, int, int], ...], *, with_published: bool) -> Iterator[Table]:
    """Yield the tables. Shadows are of all requests, not of a sample for large caches."""
    vars(shadow_replays)["SHADOW_BLOCKS"] = 1 << 40
    with TemporaryDirectory() as folder:
        known = [case for trace in generated(seeds, Path(folder)) for case in cases(trace)]
        if with_published:
            known += [case for trace in published() for case in cases(trace)]
        guards: dict[str, Guard] = {
            "as it is": lambda case: case.real,
            "in shadows": judged,
            "without need alone": lambda case: judged(case, (LRU, OWN)),
            "own order alone, no guard": lambda case: case.done.tokens[:, OWN],
            "chance 1/2": with_numbers(_SURE=sure(1 / 2)),
            "chance 1/6": with_numbers(_SURE=sure(1 / 6)),
            "chance 1/20": with_numbers(_SURE=sure(1 / 20)),
            "losses without bound": with_numbers(DEVIATIONS_LOST=np.inf),
            "half after 2 turnovers": with_numbers(GAIN_TURNOVERS=2.0),
            "half after 16 turnovers": with_numbers(GAIN_TURNOVERS=16.0),
        }
        yield share_table(known, guards)
        yield waits_table(known)
        past = [case for trace in generated(DEVELOPMENT, Path(folder)) for case in cases(trace)]
        yield begun_table(known, past)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--development", action="store_true")
    parser.add_argument("--record", action="store_true", help=f"also write {PAGE.name}")
    options = parser.parse_args()
    seeds = DEVELOPMENT if options.development else JUDGING
    made = tables(seeds, with_published=not options.development)
    text = "\n".join(["`python -m benchmarks.guard`", "", *(table.markdown() for table in made)])
    print(text)
    if options.record:
        record(PAGE, text, "guard")


if __name__ == "__main__":
    main()
