"""`--fail-on`: conditions on a command's verdict or figures that end it with exit code 4.

    p95>200ms,attainment<95%        verdict!=switch        tlru.hit-rate<0.4        regression>5%

A condition is a name, an operator and a limit. Commas, or the option again, separate several. A
figure takes `<`, `<=`, `>` or `>=`, a verdict `=` or `!=`. `POLICY.` before the name picks one of
several policies. Figures are in seconds, shares from 0 to 1, or requests per second.

`regression` is the worst relative change from a baseline, `SUBJECT.regression` that of one figure
or policy: `tlru.regression>5%`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from kvscope.core import units
from kvscope.core.errors import InputError, UsageError, placed
from kvscope.core.files import content_of
from kvscope.replay.causes import CAUSES

if TYPE_CHECKING:
    from kvscope.core.percentiles import Percentiles
    from kvscope.core.runs import Run
    from kvscope.core.trace import Trace
    from kvscope.store.db import Store
    from kvscope.store.file import Stores


Figures = Mapping[str, float | str | None]
"""A command's verdict and figures by name; None for a figure that cannot be computed."""

VERDICT = "verdict"
REGRESSION = "regression"
RUN = "run:"
QUEUED = "queued-"
PERCENTILES: tuple[str, ...] = ("p50", "p90", "p95", "p99")
BY_SLO: tuple[str, ...] = ("attainment", "tel")
RUN_FIGURES = (*PERCENTILES, "hit-rate", *BY_SLO)
_EQUALITY = ("=", "!=")
_ORDER: Mapping[str, Callable[[Decimal, Decimal], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CONDITION = re.compile(r"([^<>=!\s]+)\s*([<>=!]+)\s*([^<>=!]+)")
_DIGITS = 3


class FigureKind(Struct, frozen=True):
    """How to parse the limit of a figure and write its value, and which direction is worse.

    `needs` says how to get a result with the figure. `near_zero` figures can be 0, which makes
    relative changes meaningless: only their own regression (`tel.regression`) covers them.
    """

    parse: Callable[[str], float]
    write: Callable[[float], str]
    example: str
    needs: str
    higher_is_better: bool = False
    near_zero: bool = False


_TIMES = units.parse_duration, units.duration_in_words
_SHARES = units.parse_share, units.format_share
_RATES = (
    (lambda text: units.parse_rate(text if "/" in text else f"{text}/s")),
    units.format_rate,
)
_COUNTS = (lambda text: float(units.parse_tokens(text))), units.format_count
_TIMED, _HASHED = "it takes a trace with arrival times", "it takes a trace with block hashes"
_TTFT = FigureKind(*_TIMES, ">200ms", "it takes requests with a TTFT")
_MISSED = FigureKind(*_SHARES, ">5%", _HASHED, near_zero=True)
_QUEUED = FigureKind(*_TIMES, ">200ms", _TIMED)
_ATTAINMENT = FigureKind(*_SHARES, "<95%", "it takes an SLO", higher_is_better=True)
KINDS: Mapping[str, FigureKind] = {
    **dict.fromkeys((*PERCENTILES, "tpot-p95"), _TTFT),
    "tel": replace(_TTFT, near_zero=True),
    "attainment": _ATTAINMENT,
    **{f"{QUEUED}{name}": _QUEUED for name in PERCENTILES},
    f"{QUEUED}tel": replace(_QUEUED, near_zero=True),
    f"{QUEUED}attainment": _ATTAINMENT,
    "hit-rate": FigureKind(*_SHARES, "<40%", _HASHED, higher_is_better=True),
    "throughput": FigureKind(*_RATES, "<3", _TIMED, higher_is_better=True),
    "replicas": FigureKind(*_COUNTS, ">8", "it takes a fleet"),
    "mismatched": replace(_MISSED, example=">1%", needs="it takes an engine that reports its hits"),
    **dict.fromkeys(("missed", *CAUSES), _MISSED),
    REGRESSION: FigureKind(*_SHARES, ">5%", "it takes a figure that the baseline has, too"),
}
"""The figures of all commands by their names."""


def _kind(name: str) -> FigureKind:
    """Return the kind of a figure, by its name with or without a policy before it."""
    return KINDS[name.rpartition(".")[2]]


class Known(Struct, frozen=True):
    """The names that the conditions of one command may use.

    `verdicts` are the command's possible verdicts. `missing` maps names that need other options to
    the obstacle and the remedy.
    """

    figures: tuple[str, ...]
    verdicts: tuple[str, ...] = ()
    missing: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a condition may begin with."""
        return (VERDICT, *self.figures) if self.verdicts else self.figures

    @property
    def listed(self) -> str:
        """The valid names in words, with the policies or routers that can prefix them."""
        parts = [name.rpartition(".") for name in self.names]
        names = ", ".join(dict.fromkeys(name for *_, name in parts))
        policies = ", ".join(dict.fromkeys(policy for policy, *_ in parts if policy))
        prefixed = f"; of {policies} as POLICY.NAME" if policies else ""
        return f"{names}{prefixed}; {REGRESSION} with --baseline"

    def of(self, subject: str) -> tuple[str, ...]:
        """Return the figures that a condition covers; of `tlru.regression>5%`, `subject` is "tlru".

        It is a figure, a policy or a router; "", for `regression>5%`: figures without a prefix.
        """
        return tuple(name for name in self.figures if _covers(subject, name))

    @property
    def example(self) -> str:
        """An example of a condition that this command accepts."""
        if not self.figures:
            return f"{VERDICT}={self.verdicts[0]}"
        return f"{self.figures[0]}{_kind(self.figures[0]).example}"


class Gate(Struct, frozen=True):
    """One condition. `written` is the limit as typed, `limit` a verdict or in the figure's unit."""

    name: str
    operator: str
    written: str
    limit: float | str

    def __str__(self) -> str:
        return f"{self.name}{self.operator}{self.written}"

    @property
    def is_regression(self) -> bool:
        """Whether the condition is on a change from a baseline."""
        return _subject(self.name) is not None

    def reason(self, figures: Figures, baseline: Figures | None = None) -> str | None:
        """Return why the condition holds, in one line, or None where it does not.

        A figure that could not be computed or is infinite meets every condition. Raises InputError
        if the result lacks the figure, or has none in common with the baseline.
        """
        if self.is_regression:
            return self._regressed(figures, baseline or {})
        if self.name not in figures:
            raise InputError(
                f"the result has no {self.name}",
                where=f"--fail-on {self}",
                remedy=_kind(self.name).needs,
            )
        value = figures[self.name]
        if isinstance(value, str):
            holds = (_spelled(value) == self.limit) is (self.operator == "=")
            shown = f"is {value}"
        elif value is None or math.isnan(value):
            holds, shown = True, "cannot be computed"
        elif math.isinf(value):
            holds, shown = True, "is infinite"
        else:
            holds = _ORDER[self.operator](Decimal(value), Decimal(self.limit))
            shown = f"is {self._shown(value)}"
        return f"fail-on {self}: {self.name} {shown}" if holds else None

    def _regressed(self, figures: Figures, baseline: Figures) -> str | None:
        """Return why the worst regression is beyond the limit, or None where it is not."""
        worst = worst_regression(figures, baseline, _subject(self.name) or "")
        if worst is None:
            raise InputError(
                "the baseline and the result have no such figure in common",
                where=f"--fail-on {self}",
                remedy="make the baseline with the same options",
            )
        if not _ORDER[self.operator](Decimal(worst.share), Decimal(self.limit)):
            return None
        write = _kind(worst.name).write
        was = write(worst.before)
        if worst.after is None:
            return f"fail-on {self}: {worst.name} cannot be computed, was {was}"
        change = f"{self._shown(worst.share)} worse" if math.isfinite(worst.share) else "worse"
        return f"fail-on {self}: {worst.name} is {change}: {write(worst.after)}, was {was}"

    def _shown(self, value: float) -> str:
        """Return `value` in the limit's unit, rounded so that the condition holds."""
        number, unit = re.findall(r"([0-9.]+)(.*)", self.written)[0]
        if not unit and not float(number):  # 0 is 0 in any unit
            (unit,) = re.findall(r"[0-9.]([^0-9.]*)$", _kind(self.name).example)
        scaled = value / _kind(self.name).parse(f"1{unit}")
        for digits in range(_DIGITS, 18):
            text = f"{Decimal(f'{scaled:.{digits}g}'):f}"
            if _ORDER[self.operator](Decimal(text), Decimal(number)):
                break
        return f"{text} {unit}" if unit.isalpha() else f"{text}{unit}"


def parse_gates(texts: Sequence[str], known: Known) -> tuple[Gate, ...]:
    """Return the conditions in the values of `--fail-on`, each once. Raises UsageError."""
    conditions = [part.strip() for text in texts for part in text.split(",")]
    return tuple(dict.fromkeys(_gate(condition, known) for condition in conditions))


def reasons(gates: Sequence[Gate], figures: Figures, baseline: Figures | None = None) -> list[str]:
    """Return a line for every condition that holds; InputError if a figure for one is missing."""
    return [reason for gate in gates if (reason := gate.reason(figures, baseline)) is not None]


class Regression(Struct, frozen=True):
    """The relative worsening of a figure against the baseline; negative if it improved.

    `after` is None for a figure that can no longer be computed; `share` is then infinite.
    """

    name: str
    share: float
    before: float
    after: float | None


def worst_regression(figures: Figures, baseline: Figures, subject: str = "") -> Regression | None:
    """Return the regression of the figure that worsened most, None without a common figure.

    `subject` is a figure, a policy or a router; "" covers figures without a prefix. Figures that
    can be near 0 (TEL, mispredicted tokens and causes of misses) count only as the subject.
    """
    known = [
        change
        for name in figures
        if _covers(subject, name) and (change := _regression(name, figures, baseline)) is not None
    ]
    return max(known, key=lambda change: change.share, default=None)


def _regression(name: str, figures: Figures, baseline: Figures) -> Regression | None:
    before, after = baseline.get(name), figures[name]
    if not isinstance(before, int | float) or not math.isfinite(before) or isinstance(after, str):
        return None
    if after is None or not math.isfinite(after):
        return Regression(name, math.inf, before, None)
    worse = before - after if _kind(name).higher_is_better else after - before
    share = worse / before if before else math.inf if worse > 0 else 0.0
    return Regression(name, share, before, after)


def _subject(name: str) -> str | None:
    """Return SUBJECT of a name `SUBJECT.regression`, "" of `regression`, None of other names."""
    subject, _, last = name.rpartition(".")
    return subject if last == REGRESSION else None


def _covers(subject: str, name: str) -> bool:
    """Return whether a regression of `subject` covers the figure `name`."""
    owner = name.rpartition(".")[0]
    return name == subject or (owner == subject and name != VERDICT and not _kind(name).near_zero)


def _gate(text: str, known: Known) -> Gate:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is not a condition",
            where="--fail-on",
            remedy=f"write for example {known.example}",
        )
    where = f"--fail-on {text}"
    name, comparison, limit = match[1].casefold(), match[2], match[3].strip()
    subject = _subject(name)
    if subject is not None:
        _check_regression(subject, known, where)
    elif name in known.missing:
        what, remedy = known.missing[name]
        raise UsageError(what, where=where, remedy=remedy)
    elif name not in known.names:
        raise UsageError(
            f"there is no figure {match[1]!r} here",
            where=where,
            remedy=_nearest(name, (*known.names, *known.missing, REGRESSION), known.listed),
        )
    of_verdicts = name == VERDICT
    operators = _EQUALITY if of_verdicts else tuple(_ORDER) if subject is None else (">", ">=")
    if comparison not in operators:
        raise UsageError(
            f"{comparison!r} does not compare {'verdicts' if of_verdicts else 'figures'}",
            where=where,
            remedy=f"take {', '.join(operators[:-1])} or {operators[-1]}",
        )
    if of_verdicts:
        verdicts = [_spelled(verdict) for verdict in known.verdicts]
        verdict = _spelled(limit)
        if verdict not in verdicts:
            raise UsageError(
                f"there is no verdict {limit!r} here",
                where=where,
                remedy=_nearest(verdict, verdicts, ", ".join(verdicts)),
            )
        return Gate(name, comparison, verdict, verdict)
    with placed(where):
        return Gate(name, comparison, limit.replace(" ", ""), _kind(name).parse(limit))


def _check_regression(subject: str, known: Known, where: str) -> None:
    """Raise UsageError if `SUBJECT.regression` covers no figure of the command.

    `subject` is "" for `regression` alone; `where` is the option with the condition as typed.
    """
    if known.of(subject):
        return
    if subject:
        raise UsageError(
            f"there is no figure {subject!r} here",
            where=where,
            remedy=_nearest(subject, known.names, known.listed),
        )
    raise UsageError(
        "several policies are replayed",
        where=where,
        remedy=f"name one, as in {known.figures[0].rpartition('.')[0]}.{REGRESSION}",
    )


def _spelled(verdict: str) -> str:
    """Return a verdict in lower case, its words joined by hyphens."""
    return "-".join(verdict.casefold().split())


def _nearest(name: str, candidates: Sequence[str], listed: str) -> str:
    near = get_close_matches(name, candidates, n=1)
    return f"did you mean {near[0]}? Known here: {listed}" if near else f"known here: {listed}"


def ttft_figures(ttft_ms: Percentiles) -> dict[str, float]:
    """Return percentiles of TTFT in seconds, by the names `p50`, `p90`, `p95` and `p99`."""
    return {name: getattr(ttft_ms, name) / 1e3 for name in PERCENTILES}


def baseline_figures(
    baseline: str | None,
    gates: Sequence[Gate],
    command: str,
    stores: Stores,
    of_run: Callable[[Run], Figures] | None = None,
) -> Figures | None:
    """Return the figures of a `baseline`, None without one.

    `baseline` is the path of the JSON document of an earlier `command`, or the stored run `run:N`,
    whose figures `of_run` returns. Raises UsageError for a regression without a baseline or a
    baseline without a regression, InputError for a baseline that cannot be read.
    """
    needed = [gate for gate in gates if gate.is_regression]
    if baseline is None:
        if needed:
            raise UsageError(
                "needs a baseline",
                where=f"--fail-on {needed[0]}",
                remedy="add --baseline with the --json of an earlier result",
            )
        return None
    if not needed:
        raise UsageError(
            "nothing compares with it",
            where="--baseline",
            remedy=f'add --fail-on "{REGRESSION}>5%"',
        )
    if not baseline.startswith(RUN):
        return _of_document(read_document(baseline), command, baseline)
    if of_run is None:
        raise UsageError(
            "a stored run is a replay",
            where=f"--baseline {baseline}",
            remedy=f"name the file of an earlier `kvscope {command} --json`",
        )
    with stores.reading() as store:
        return of_run(stored_run(store, baseline)[1])


def stored_run(store: Store, name: str) -> tuple[Trace, Run]:
    """Return the trace and the run that `name`, `run:N`, names in the store.

    The run has its figures by category and time, too. Raises InputError if there is no such run.
    """
    from kvscope.store import results, traces

    number = name.removeprefix(RUN)
    for trace in traces.all_traces(store):
        for known in results.all_runs(store, trace):
            if str(known.run_id) == number:
                return trace, results.with_parts(store, [known])[0].run
    raise InputError(
        "the store has no such run", where=name, remedy="`kvscope runs` lists their numbers"
    )


def read_document(path: str) -> dict[str, Any]:
    """Return a document of `--json` from a file. Raises InputError if the file holds none."""
    try:
        document = msgspec.json.decode(content_of(Path(path)))
    except OSError as error:
        raise InputError(error.strerror or "cannot be read", where=path) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", where=path) from error
    if not isinstance(document, dict) or not {"kvscope", "command"} <= set(document):
        raise InputError(
            "not a document of kvscope", where=path, remedy="write one with --json > FILE"
        )
    return document


def _of_document(document: dict[str, Any], command: str, path: str) -> Figures:
    """Return the figures of a document; InputError if it has none or is of another command."""
    if document["command"] != command:
        raise InputError(
            f"a document of `kvscope {document['command']}`, not of `kvscope {command}`", where=path
        )
    if "figures" not in document:
        raise InputError(
            f"written by kvscope {document['kvscope']}, which did not write figures",
            where=path,
            remedy="write it again with this version",
        )
    return dict(document["figures"])
