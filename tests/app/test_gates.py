"""The grammar of `--fail-on`: what is read, what is refused, and when a condition holds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.app.gates import (
    Gate,
    Known,
    parse_gates,
    reasons,
    worst_regression,
)
from kvscope.core.errors import InputError, UsageError
from kvscope.usecases import simulate
from kvscope.usecases.simulate import SimulateOptions, simulate_request

FIGURES = ("p50", "p95", "p99", "attainment", "hit-rate", "tel", "throughput", "tlru.p95")
KNOWN = Known(
    (*FIGURES, "queued-p95"), ("switch", "overloaded", "not confirmed"), {"ttl.p95": ("no", "do")}
)

NUMBERS = st.integers(1, 999).map(lambda number: f"0.{number:03d}")
UNITS = {"attainment": ("", "%"), "hit-rate": ("", "%"), "throughput": ("", "/s", "/min")}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
SPELLINGS = (("", str.upper), (" ", str.title), ("  ", str.lower))


def one(text: str) -> Gate:
    (gate,) = parse_gates([text], KNOWN)
    return gate


@st.composite
def conditions(draw: st.DrawFn) -> tuple[Gate, str]:
    """Draw a condition, and a way to write it: in any case, with blanks."""
    if draw(st.booleans()):
        name, verdict = "verdict", draw(st.sampled_from(("switch", "overloaded", "not-confirmed")))
        gate = Gate(name, draw(st.sampled_from(("=", "!="))), verdict, verdict)
    else:
        name = draw(st.sampled_from((*FIGURES, "queued-p95")))
        unit = draw(st.sampled_from(UNITS.get(name, tuple(SECONDS))))
        number = draw(NUMBERS)
        scale = {"%": 0.01, "/min": 1 / 60}.get(unit, SECONDS.get(unit.removeprefix("/"), 1.0))
        operator = draw(st.sampled_from(("<", "<=", ">", ">=")))
        gate = Gate(name, operator, number + unit, float(number) * scale)
    blank, spelled = draw(st.sampled_from(SPELLINGS))
    limit = spelled(gate.written) if name == "verdict" else gate.written
    return gate, blank.join(("", spelled(gate.name), gate.operator, limit, ""))


@settings(deadline=None)
@given(st.lists(conditions(), min_size=1, max_size=4), st.booleans())
def test_what_is_written_is_read(drawn: list[tuple[Gate, str]], repeated: bool) -> None:
    """By comma or by repeating the option, in any case; a condition's text is read as itself."""
    texts = [text for _, text in drawn]
    gates = parse_gates(texts if repeated else [",".join(texts)], KNOWN)
    expected = list(dict.fromkeys(str(gate) for gate, _ in drawn))
    assert [str(gate) for gate in gates] == expected
    limits = {str(gate): gate.limit for gate, _ in drawn}
    for gate in gates:
        assert gate.limit == pytest.approx(limits[str(gate)])
        assert one(str(gate)) == gate
    assert parse_gates([",".join(map(str, gates))], KNOWN) == gates


@pytest.mark.parametrize(
    ("operator", "below", "equal", "above"),
    [
        ("<", True, False, False),
        ("<=", True, True, False),
        (">", False, False, True),
        (">=", False, True, True),
    ],
)
def test_figures_are_compared(operator: str, below: bool, equal: bool, above: bool) -> None:
    """Below, at and above the limit."""
    gate = one(f"p95{operator}200ms")
    holds = [gate.reason({"p95": value}) is not None for value in (0.1999, 0.2, 0.2001)]
    assert holds == [below, equal, above]


def test_verdicts_are_compared() -> None:
    """In any case; a verdict of two words is written with a hyphen."""
    for text, verdict, holds in [
        ("verdict=switch", "switch", True),
        ("verdict=SWITCH", "overloaded", False),
        ("verdict!=switch", "switch", False),
        ("verdict!=switch", "overloaded", True),
        ("verdict=not-confirmed", "not confirmed", True),
    ]:
        assert (one(text).reason({"verdict": verdict}) is not None) is holds, text


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("p95>200ms", 0.2),
        ("p50>=1s", 1),
        ("tel>1.5m", 90),
        ("attainment<0.95", 0.95),
        ("attainment<95%", 0.95),
        ("hit-rate<=40 %", 0.4),
        ("throughput<3", 3),
        ("throughput<180/min", 3),
    ],
)
def test_limits_have_units(text: str, limit: float) -> None:
    """Seconds, shares and requests per second."""
    assert one(text).limit == limit


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--fail-on: '' is not a condition; write for example p50>200ms"),
        ("p95", "--fail-on: 'p95' is not a condition; write"),
        ("p95>200ms,", "--fail-on: '' is not a condition; write"),
        ("p95>1s>2s", "--fail-on: 'p95>1s>2s' is not a condition; write"),
        ("p95 p99>1s", "--fail-on: 'p95 p99>1s' is not a condition; write"),
        (">1s", "--fail-on: '>1s' is not a condition; write"),
        ("p59>1s", "--fail-on p59>1s: there is no figure 'p59' here; did you mean p"),
        ("xyz>1s", "here; known here: verdict, p50, p95, p99, attainment, hit-rate, tel, throug"),
        ("Hit_Rate<1%", "there is no figure 'Hit_Rate' here; did you mean hit-rate? Known"),
        ("tlr.p95>1s", "there is no figure 'tlr.p95' here; did you mean tlru.p95?"),
        ("ttl.p95>1s", "--fail-on ttl.p95>1s: no; do"),
        ("p95=1s", "'=' does not compare figures; take <, <=, > or >="),
        ("p95=>1s", "'=>' does not compare figures; take <, <=, > or >="),
        ("p95<>1s", "'<>' does not compare figures"),
        ("verdict>switch", "'>' does not compare verdicts; take = or !="),
        ("verdict==switch", "'==' does not compare verdicts; take = or !="),
        ("verdict=swich", "there is no verdict 'swich' here; did you mean switch? Known here: "),
        ("verdict=1", "no verdict '1' here; known here: switch, overloaded, not-confirmed"),
        ("p95>200", "--fail-on p95>200: '200' is not a duration; write for example 200ms"),
        ("p95>95%", "'95%' is not a duration"),
        ("p95>-1s", "'-1s' is not a duration"),
        ("p95>1e3s", "'1e3s' is not a duration"),
        ("p95>nan", "'nan' is not a duration"),
        ("attainment<95", "'95' is not a share"),
        ("hit-rate<40ms", "'40ms' is not a share"),
        ("throughput<3ms", "is not a rate above 0; write for example"),
        ("throughput<0", "is not a rate above 0"),
    ],
)
def test_refused(text: str, message: str) -> None:
    """Each mistake names the option, the condition, and what would be right."""
    with pytest.raises(UsageError) as refusal:
        parse_gates([text], KNOWN)
    assert message in str(refusal.value)
    assert str(refusal.value).startswith("--fail-on")


@pytest.mark.parametrize(
    ("text", "value", "reason"),
    [
        ("p95>200ms", 0.345, "fail-on p95>200ms: p95 is 345 ms"),
        ("p95 > 200ms", 12.0, "fail-on p95>200ms: p95 is 12000 ms"),
        ("TLRU.p95>=0.2s", 0.345678, "fail-on tlru.p95>=0.2s: tlru.p95 is 0.346 s"),
        ("p95>200ms", 0.20003, "fail-on p95>200ms: p95 is 200.03 ms"),
        ("p95<1s", 0.99999, "fail-on p95<1s: p95 is 0.99999 s"),
        ("attainment<0.95", 0.9, "fail-on attainment<0.95: attainment is 0.9"),
        ("attainment<95%", 0.9321, "fail-on attainment<95%: attainment is 93.2%"),
        ("attainment<95%", 0.94999, "fail-on attainment<95%: attainment is 94.999%"),
        ("hit-rate<40%", 0.0, "fail-on hit-rate<40%: hit-rate is 0%"),
        ("throughput<180/min", 2.5, "fail-on throughput<180/min: throughput is 150/min"),
        ("throughput<3", 2.5, "fail-on throughput<3: throughput is 2.5"),
        ("tel>1m", 3600.0, "fail-on tel>1m: tel is 60 m"),
        ("p95>200ms", math.nan, "fail-on p95>200ms: p95 cannot be computed"),
        ("p95>200ms", None, "fail-on p95>200ms: p95 cannot be computed"),
        ("p95<200ms", math.inf, "fail-on p95<200ms: p95 is infinite"),
        ("p95>200ms", math.inf, "fail-on p95>200ms: p95 is infinite"),
        ("verdict!=switch", "keep-lru", "fail-on verdict!=switch: verdict is keep-lru"),
    ],
)
def test_the_reason_is_a_line(text: str, value: float | str | None, reason: str) -> None:
    """In the unit of the limit, with as many digits as tell the figure from the limit."""
    gate = one(text)
    assert reasons([gate], {gate.name: value}) == [reason]


@settings(deadline=None)
@given(
    st.sampled_from(("<", "<=", ">", ">=")),
    st.floats(1e-6, 1e6),
    st.sampled_from(("0.345s", "200ms", "3min", "7h")),
)
def test_a_reason_never_contradicts_its_condition(operator: str, value: float, limit: str) -> None:
    """The figure that is shown satisfies the condition, too."""
    (reason,) = reasons([one(f"p95{operator}{limit}")], {"p95": value}) or [""]
    if reason:
        _, _, shown = reason.rpartition(" is ")
        number, unit = shown.split()
        assert one(f"p95{operator}{limit}").reason({"p95": one(f"p95>{number}{unit}").limit})
        assert limit.endswith(unit)


def test_every_condition_that_holds_has_a_reason() -> None:
    """In the order of the conditions; what does not hold has none."""
    gates = parse_gates(["p95>1s,p50>1s", "tel>1s"], KNOWN)
    assert reasons(gates, {"p50": 0.5, "p95": 2.0, "tel": 3.0}) == [
        "fail-on p95>1s: p95 is 2 s",
        "fail-on tel>1s: tel is 3 s",
    ]
    assert reasons((), {}) == []


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("hit-rate<40%", "it takes a trace with block hashes"),
        ("attainment<95%", "it takes an SLO"),
        ("queued-p95>1s", "it takes a trace with arrival times"),
    ],
)
def test_a_figure_that_the_result_lacks(text: str, remedy: str) -> None:
    """No condition on it can hold or not: unreadable input, with what the figure takes."""
    with pytest.raises(InputError) as refusal:
        reasons([one(text)], {"p50": 1.0})
    assert str(refusal.value).startswith(f"--fail-on {text}: the result has no ")
    assert str(refusal.value).endswith(remedy)


def test_tiers_are_one_capacity() -> None:
    """They have capacities of their own."""
    tiers = {"tiers": "hbm=2blocks,dram=2blocks", "model": "llama3-8b"}
    request = simulate_request(SimulateOptions(**tiers, policy="lru", slo=1.0))
    gates = parse_gates(["p95>1s,lru.tel>1s"], simulate.known_figures(request))
    assert [gate.name for gate in gates] == ["p95", "lru.tel"]


BEFORE = {"verdict": "switch", "p95": 0.2, "p99": 1.0, "attainment": 0.9, "tel": 0.0, "x.p95": 1.0}


@pytest.mark.parametrize(
    ("text", "after", "reason"),
    [
        ("regression>5%", {}, None),
        ("regression>5%", {"p95": 0.21}, None),
        ("regression>=5%", {"p95": 0.25, "p99": 1.1}, "p95 is 25% worse: 250 ms, was 200 ms"),
        ("regression>5%", {"attainment": 0.81}, "attainment is 10% worse: 81.0%, was 90.0%"),
        ("regression>5%", {"attainment": 1.0, "p95": 0.1}, None),
        ("regression>5%", {"tel": 9.0, "x.p95": 9.0, "verdict": "keep-lru"}, None),
        ("regression>5%", {"p99": None}, "p99 cannot be computed, was 1 s"),
        ("p99.regression>5%", {"p95": 0.3}, None),
        ("tel.regression>5%", {"tel": 9.0}, "tel is worse: 9 s, was 0 s"),
        ("X.Regression > 5%", {"x.p95": 1.0501}, "x.p95 is 5.01% worse: 1.05 s, was 1 s"),
    ],
)
def test_regressions(text: str, after: dict[str, float | None], reason: str | None) -> None:
    """The figure that worsened most, relative to the baseline; TEL and policies only by name."""
    known = Known(("p95", "p99", "attainment", "tel", "x.p95"), ("switch",))
    (gate,) = parse_gates([text], known)
    expected = [] if reason is None else [f"fail-on {gate}: {reason}"]
    assert reasons([gate], {**BEFORE, **after}, BEFORE) == expected


def test_a_regression_takes_a_common_figure() -> None:
    """Neither is there a baseline's figure that the result lacks, nor the other way round."""
    assert worst_regression({"p95": 1.0}, {"p99": 1.0}) is None
    with pytest.raises(InputError, match="have no such figure in common; make the baseline with"):
        reasons(parse_gates(["regression>5%"], KNOWN), {"p95": 1.0}, {"p99": 1.0})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("regression<5%", "'<' does not compare figures; take > or >="),
        ("regression>5ms", "'5ms' is not a share"),
        ("p59.regression>5%", "there is no figure 'p59' here; did you mean p"),
        ("regresion>5%", "there is no figure 'regresion' here; did you mean regression?"),
    ],
)
def test_refused_regressions(text: str, message: str) -> None:
    """As other mistakes are."""
    with pytest.raises(UsageError) as refusal:
        parse_gates([text], KNOWN)
    assert message in str(refusal.value)
    policies = Known(("lru.p95", "wa.p95"))
    with pytest.raises(UsageError, match=r"are replayed; name one, as in lru\.reg"):
        parse_gates(["regression>5%"], policies)
