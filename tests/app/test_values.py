"""Values of options: what is taken, and how the rest is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvscope.app import values
from kvscope.core import units
from kvscope.core.errors import UsageError


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (values.whole(0), "0", 0),
        (values.whole(1), "17", 17),
        (values.auto_or(values.whole(1)), "17", 17),
        (values.auto_or(values.whole(1)), "auto", None),
        (values.amount("blocks"), "8k", 8000),
        (values.positive(units.parse_size), "1KiB", 1024),
        (values.listed(units.parse_size), "1KiB, 2KiB", (1024, 2048)),
        (values.session_arrivals, "poisson:30/min", 0.5),
        (values.other_machine, "l40s", values.OtherMachine("l40s")),
        (values.other_machine, "2xh100:FP8@2.5", values.OtherMachine("h100", 2, "fp8", 2.5)),
        (values.called, "a b", "a b"),
        (values.target, "-", "-"),
    ],
)
def test_taken(parse: Callable[[str], Any], text: str, value: object) -> None:
    """Each kind of value in the form that its help shows."""
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "what"),
    [
        (values.whole(1), "0", "'0' is not a whole number from 1 on"),
        (values.whole(0), "-1", "'-1' is not a whole number from 0 on"),
        (values.whole(0), "1.5", "'1.5' is not a whole number"),
        (values.whole(1), "9" * 20, f"'{'9' * 20}' is too large; write at most 2147483647"),
        (values.whole(1), "9" * 5000, f"'{'9' * 5000}' is too large"),
        (values.amount("blocks"), "0", "'0' is not a number of blocks; write for example 2000"),
        (values.amount("requests"), "x", "'x' is not a number of requests"),
        (values.positive(units.parse_size), "0GiB", "'0GiB' is not above zero"),
        (values.listed(values.amount("blocks")), "1,,2", "'' is not a number of blocks"),
        (values.session_arrivals, "uniform:1/s", "'uniform:1/s' is not an arrival process"),
        (values.session_arrivals, "poisson:0.5", "'0.5' is not a rate above 0"),
        (values.other_machine, "h100:fp7", "'fp7' is not one of bf16, fp8, int8, awq, gptq"),
        (values.other_machine, "2xh100:@2.5", "'' is not one of bf16, fp8"),
        (values.called, " ", "it is empty"),
        (values.target, "", "it is empty"),
        (values.target, "no/such/file", "there is no folder 'no/such'; make it first"),
    ],
)
def test_refused(parse: Callable[[str], Any], text: str, what: str) -> None:
    """The refusal repeats what was typed and says what would do."""
    with pytest.raises(UsageError) as refusal:
        parse(text)
    assert str(refusal.value).startswith(what)


def test_a_folder_is_no_target(tmp_path: Path) -> None:
    """A file in a folder that exists is one."""
    assert values.target(str(tmp_path / "new.html")) == str(tmp_path / "new.html")
    with pytest.raises(UsageError, match="is a folder; name a file in it"):
        values.target(str(tmp_path))
