"""A short run of every attack; `make attack` runs them for minutes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.attack import ATTACKS, runner
from tests.attack.attack import Attack, Case, Harm, Tally, attempt_all
from tests.attack.commands import DONE, Outcome
from tests.attack.mutations import NAMES, as_json, mutated_bytes, mutated_document
from tests.cli.shell import Streams


@pytest.mark.parametrize("kind", ATTACKS, ids=lambda kind: kind.name)
def test_it_finds_nothing(kind: type[Attack], tmp_path: Path) -> None:
    """The first cases of seed 0; a finding's folder has its input and the command for it."""
    home, kept, tally = tmp_path / "home", tmp_path / "kept", Tally()
    home.mkdir()
    attempt_all(kind(home), 0, range(kind.short), kept, tally)
    assert (tally.cases, tally.findings) == (kind.short, 0), [*kept.glob("*/finding.txt")]


class Careless(Attack):
    """Finds what is wrong with every third input."""

    name, target, share, short = "careless", "nothing", 1.0, 9

    def attempt(self, case: Case) -> int:
        """Write the input, and fail at times."""
        (case.folder / "input").write_bytes(case.random.randbytes(8))
        number = int(case.random.random() * 3)
        if number == 0:
            raise Harm("it is zero")
        return 1


def test_a_finding_is_kept_and_repeated_by_its_number(tmp_path: Path) -> None:
    """Its folder has the input and the command; the same case has the same input."""
    attack, tally, again = Careless(tmp_path), Tally(), Tally()
    attempt_all(attack, 5, range(9), tmp_path / "kept", tally)
    kept = sorted((tmp_path / "kept").iterdir())
    assert 0 < tally.findings == len(kept) < tally.cases == 9
    number = int(kept[0].name.removeprefix("careless-5-"))
    finding = (kept[0] / "finding.txt").read_text()
    assert finding.startswith(f"make attack ATTACK='--only careless --seed 5 --case {number}'")
    assert "it is zero" in finding
    attempt_all(attack, 5, [number], tmp_path / "again", again)
    repeated = tmp_path / "again" / kept[0].name / "input"
    assert repeated.read_bytes() == (kept[0] / "input").read_bytes()


def test_the_runner_prints_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: Streams, tmp_path: Path
) -> None:
    """A process for each attack; cases, inputs and findings come back from it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["attack", "--only", "plugin", "--case", "3", "--seed", "2"])
    assert runner.main() == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.split()[:4] == ["plugin", "1", "1", "0"]


@pytest.mark.parametrize(
    ("code", "out", "err", "what"),
    [
        (1, "", "internal error: X; run again", "an internal error"),
        (1, "", "error: no space\n", "exit code 1"),
        (0, "", "error: but done\n", "1 error lines"),
        (0, "a\x1b[2Jb\n", "", "in stdout"),
    ],
)
def test_what_no_command_may_do(code: int, out: str, err: str, what: str) -> None:
    """Each is a finding."""
    with pytest.raises(Harm, match=what):
        Outcome(("traces",), code, out, err).check(DONE)


def test_mutations_are_seeded_and_change_something() -> None:
    """A seed gives one input; most inputs differ from what they were made of."""
    document = {"a": 1, "b": [1, 2, {"c": "x"}], "d": NAMES[0]}

    def made(seed: int) -> tuple[bytes, bytes]:
        random = Random(seed)
        return (
            as_json(random, mutated_document(random, document)),
            mutated_bytes(random, b"some bytes of a line"),
        )

    assert made(1) == made(1)
    assert len({made(seed) for seed in range(50)}) == 50
