"""The contract of an attack, and the loop that runs its cases and keeps what they found.

A case is a number: with the seed and the attack's name it decides every random choice, so that a
finding is repeated by naming the three.
"""

from __future__ import annotations

import shutil
import signal
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import ClassVar

MOST_KEPT = 20
"""Findings of one attack whose input is kept; the others are only counted."""


class Harm(Exception):
    """The program did what no input may make it do; the message says what."""


class TooSlow(BaseException):
    """A case took longer than its attack allows; no command may take it for its own error."""


@dataclass(frozen=True, slots=True)
class Case:
    """One try: its random choices, and the empty folder that its input files go to."""

    random: Random
    folder: Path


class Attack(ABC):
    """One way to attack kvscope.

    `share` is the part of a long run's time that it gets, `short` the number of its cases in CI,
    `limit_s` the longest time of a case. What cases share is made once, in `home`.
    """

    name: ClassVar[str]
    target: ClassVar[str]
    share: ClassVar[float]
    short: ClassVar[int]
    limit_s: ClassVar[float] = 120.0

    def __init__(self, home: Path) -> None:
        self.home = home

    @abstractmethod
    def attempt(self, case: Case) -> int:
        """Try one case and return its number of inputs.

        Raises Harm, or anything else that kvscope must not raise.
        """


@dataclass(slots=True)
class Tally:
    """The cases tried, the inputs in them, and the cases that found something."""

    cases: int = 0
    inputs: int = 0
    findings: int = 0


def attempt_all(
    attack: Attack, seed: int, numbers: Iterable[int], kept: Path, tally: Tally
) -> None:
    """Try the cases and count; keep the input of those that find something below `kept`.

    Ends at a case that takes too long: what it left behind, an open store for one, would decide
    the next ones.
    """
    folder = attack.home / "case"
    folder.mkdir(exist_ok=True)
    for number in numbers:
        tally.cases += 1
        try:
            with _limited(attack.limit_s):
                case = Case(Random(f"{seed}/{attack.name}/{number}"), folder)
                tally.inputs += attack.attempt(case)
        except Exception as harm:  # noqa: BLE001  (whatever it is, it is a finding)
            tally.findings += 1
            if tally.findings <= MOST_KEPT:
                keep(attack.name, seed, number, folder, kept, _in_words(harm))
        except TooSlow as slow:
            tally.findings += 1
            keep(attack.name, seed, number, folder, kept, str(slow))
            return
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def keep(name: str, seed: int, number: int, folder: Path, kept: Path, what: str) -> None:
    """Copy the case's files below `kept`, with what went wrong and the command that repeats it."""
    place = kept / f"{name}-{seed}-{number}"
    if folder.is_dir():
        shutil.copytree(folder, place, dirs_exist_ok=True)
    place.mkdir(parents=True, exist_ok=True)
    command = f"make attack ATTACK='--only {name} --seed {seed} --case {number}'"
    (place / "finding.txt").write_text(f"{command}\n\n{what}\n", "utf-8", "backslashreplace")
    first = what.strip().splitlines()[0] if isinstance(what, str) and what.strip() else what
    sys.stderr.write(ascii(f"{name} {number}: {first}")[1:-1] + "\n")


def _in_words(harm: Exception) -> str:
    if isinstance(harm, Harm):
        return str(harm)
    return "".join([f"{type(harm).__name__}: {harm}\n\n", *traceback.format_exception(harm)])


@contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """Raise TooSlow in the block after `limit_s`, or later at the end of native code."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"still at it after {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
