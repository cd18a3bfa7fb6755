"""Attack kvscope and print a table: `python -m tests.attack --help`.

Each attack runs in a process of its own, so that a crash or a hang is a finding too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.attack import ATTACKS
from tests.attack.attack import Attack, Tally, attempt_all, keep

KEPT = Path("build") / "attack"
PATIENCE_S = 60.0
"""Beyond an attack's own limit; then its process is killed."""


def main() -> int:
    """Run the attacks and print the table; return 1 if any found something."""
    options = _parser().parse_args()
    chosen = [kind for kind in ATTACKS if not options.only or kind.name in options.only]
    shares = sum(kind.share for kind in chosen)
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, seed {options.seed}, {options.minutes:g} min")
    print(f"\n{'attack':16}{'cases':>10}{'inputs':>12}{'findings':>10}{'time':>9}")
    found = 0
    for kind in chosen:
        start_s = time.monotonic()
        if options.case is not None:
            tally = _in_child(kind, options.seed, options.case, 0)
        else:
            tally = _for_a_time(kind, options.seed, 60 * options.minutes * kind.share / shares)
        found += tally.findings
        took_s = time.monotonic() - start_s
        print(
            f"{kind.name:16}{tally.cases:10,}{tally.inputs:12,}{tally.findings:10,}{took_s:7.0f} s",
            flush=True,
        )
    if found:
        print(f"\nEach finding with its input and the command that repeats it: {KEPT}/")
    return int(found > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="of all attacks together")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other cases")
    names = [kind.name for kind in ATTACKS]
    parser.add_argument("--only", action="append", choices=names, help="one attack (repeatable)")
    parser.add_argument("--case", type=int, help="only this case, to repeat a finding")
    return parser


def _for_a_time(kind: type[Attack], seed: int, seconds: float) -> Tally:
    """Run cases for some seconds, going on after one that ends the process."""
    deadline_s, total, first = time.monotonic() + seconds, Tally(), 0
    while time.monotonic() < deadline_s:
        tally = _in_child(kind, seed, first, deadline_s)
        first += tally.cases
        total.cases += tally.cases
        total.inputs += tally.inputs
        total.findings += tally.findings
    return total


def _in_child(kind: type[Attack], seed: int, first: int, deadline_s: float) -> Tally:
    """Try cases from `first` on until the deadline, or only that one; note how the child ended."""
    context = multiprocessing.get_context("spawn")
    # the case, when it began (0: none is running), inputs and findings before it
    progress: Any = context.Array("q", [first - 1, 0, 0, 0])
    with tempfile.TemporaryDirectory(prefix="kvscope-attack-") as home:
        child = context.Process(
            target=_try, args=(kind.name, seed, first, deadline_s, home, progress)
        )
        child.start()
        hanging = False
        while child.is_alive() and not hanging:
            child.join(1)
            started_s = progress[1] or time.monotonic()
            hanging = time.monotonic() - started_s > kind.limit_s + PATIENCE_S
        if hanging:
            child.kill()
            child.join()
        number, _, inputs, findings = map(int, progress)
        if number < first:
            raise SystemExit(f"{kind.name} cannot begin")
        if child.exitcode:
            what = "hangs" if hanging else f"its process ended with {child.exitcode}"
            keep(kind.name, seed, number, Path(home) / "case", KEPT, what)
            findings += 1
    return Tally(number + 1 - first, inputs, findings)


def _try(name: str, seed: int, first: int, deadline_s: float, home: str, progress: Any) -> None:
    """Be the child: try cases, and tell the parent how far."""
    attack = next(kind for kind in ATTACKS if kind.name == name)(Path(home))
    tally = Tally()

    def numbers() -> Iterator[int]:
        number = first
        while number == first or time.monotonic() < deadline_s:
            progress[0], progress[1] = number, int(time.monotonic())
            yield number
            progress[2:] = tally.inputs, tally.findings
            number += 1

    attempt_all(attack, seed, numbers(), KEPT, tally)
    progress[2:] = tally.inputs, tally.findings
