"""What the functions of the Python API return: documents, frames, figures and HTML."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from kvscope.app.monitor import LogMonitor
from kvscope.core.errors import UsageError

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import polars as pl

    from kvscope.app.analyze import Analysis
    from kvscope.app.diff import Comparison
    from kvscope.app.explain import Explanation
    from kvscope.app.fleet import FleetStudy
    from kvscope.app.retention import Retention
    from kvscope.app.simulate import Simulation
    from kvscope.app.tune import Recommendation
    from kvscope.core.trace import Prompts
    from kvscope.report.report import Report
    from kvscope.reuse_models.results import Fit


@dataclass(frozen=True, slots=True, repr=False)
class _Result(ABC):
    """What a use case returns: the JSON document, frames, figures and HTML of one result."""

    @property
    @abstractmethod
    def _report(self) -> Report:
        """The result in every form."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._report.name}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of the command, as docs/json.md describes it."""
        from kvscope.app.documents.base import to_dict

        return to_dict(self._report.document())

    def figure(self, section: str | None = None) -> go.Figure:
        """Return the first plotly figure of a section, or of the first section that has one.

        Section names are those of `--section`. Raises UsageError where there is no figure.
        """
        report = self._report
        sections = report.select([section]) if section else report.sections()
        figures = [figure for each in sections for figure in each.figures]
        if not figures:
            named = [each.name for each in report.sections() if each.figures]
            raise UsageError(
                "has no figure", where="section", remedy=f"name one of {', '.join(named)}"
            )
        return figures[0]()

    def save_html(self, path: str | PathLike[str]) -> None:
        """Write the HTML report, whole or not at all."""
        from kvscope.core.files import write_text

        write_text(Path(path), self._report.html())

    def _repr_html_(self) -> str:
        from kvscope.report.html import fragment

        return fragment(self._report.screen())

    def _frame(self, table: str) -> pl.DataFrame:
        """Return a list of the document as a frame; nested fields become columns of their own."""
        import polars as pl

        document = self.to_dict()
        tables = [name for name, rows in document.items() if _is_table(rows)]
        if table not in tables:
            raise UsageError(
                f"no table {table!r}", where="table", remedy=f"name one of {', '.join(tables)}"
            )
        rows = [dict(_flat(row)) for row in document[table]]
        return pl.DataFrame(rows, infer_schema_length=None)


@dataclass(frozen=True, slots=True, repr=False)
class AnalysisResult(_Result):
    """What `analyze` returns; `analysis` has it all, with LRU's exact curve."""

    analysis: Analysis

    def to_polars(self, table: str = "curve") -> pl.DataFrame:
        """Return a list of the document: `curve`, `categories`, `hit_rates`, `misses` and more."""
        return self._frame(table)

    @property
    def _report(self) -> Report:
        from kvscope.report.overview import report

        return report(self.analysis)


@dataclass(frozen=True, slots=True, repr=False)
class ExplanationResult(_Result):
    """What `explain` returns; `explanation.attribution` has the causes of every request."""

    explanation: Explanation

    def to_polars(self, table: str = "causes") -> pl.DataFrame:
        """Return a list of the document: `causes`, `findings` or `requests`."""
        return self._frame(table)

    @property
    def _report(self) -> Report:
        from kvscope.report.misses import report

        return report(self.explanation)


@dataclass(frozen=True, slots=True, repr=False)
class FitResult(_Result):
    """What `fit` returns."""

    fit: Fit

    def to_polars(self, table: str = "models") -> pl.DataFrame:
        """Return a list of the document: `models`, `categories`, `next_turns` and more."""
        return self._frame(table)

    @property
    def _report(self) -> Report:
        from kvscope.report.fit import report

        return report(self.fit)


@dataclass(frozen=True, slots=True, repr=False)
class SimulationResult(_Result):
    """What `simulate` returns; `simulation.runs` has a run per policy and capacity."""

    simulation: Simulation

    def to_polars(self, table: str = "results") -> pl.DataFrame:
        """Return a list of the document: `results`, a row per policy and capacity."""
        return self._frame(table)

    @property
    def _report(self) -> Report:
        from kvscope.report.policies import report

        return report(self.simulation)


@dataclass(frozen=True, slots=True, repr=False)
class RetentionResult(_Result):
    """What `advise_retention` returns."""

    retention: Retention

    def to_polars(self, table: str = "curve") -> pl.DataFrame:
        """Return a list of the document: `curve`, `ttls`, `categories` or `charges`."""
        return self._frame(table)

    @property
    def _report(self) -> Report:
        from kvscope.report.retention import report

        return report(self.retention)


@dataclass(frozen=True, slots=True, repr=False)
class TuneResult(_Result):
    """What `tune` returns; `recommendation.tuning` has the verdict and all that was tried."""

    recommendation: Recommendation
    prompts: Prompts = field(repr=False)

    @property
    def verdict(self) -> str:
        """`switch`, `keep-lru`, `add-capacity`, `unreachable` or `overloaded`."""
        return self.recommendation.verdict

    @property
    def launch(self) -> str | None:
        """How the engine is started with the tier to add, None without one."""
        launch = self.recommendation.launch
        return None if launch is None else launch.text

    def save(
        self, path: str | PathLike[str] = "recommendation.toml", *, force: bool = False
    ) -> None:
        """Write the recommendation, as kvscope's plugin for vLLM and `simulate` read it.

        A file that recommends a switch is not replaced by another verdict, unless by `force`; the
        logger `kvscope` gets what was done.
        """
        from kvscope.app.tune import write_recommended

        written = Path(path)
        tuned = replace(self.recommendation, path=str(written))
        LogMonitor().note(write_recommended(written, tuned, self.prompts, force=force))

    def to_polars(self, table: str = "rows") -> pl.DataFrame:
        """Return a list of the document: `rows`, `contenders`, `oracles`, `explored` and more."""
        return self._frame(table)

    @property
    def _report(self) -> Report:
        from kvscope.report.recommendation import report

        return report(self.recommendation)


@dataclass(frozen=True, slots=True, repr=False)
class DiffResult(_Result):
    """What `diff` returns; `comparison` has it all."""

    comparison: Comparison

    def to_polars(self, table: str = "differences") -> pl.DataFrame:
        """Return a list of the document: `differences` or `same`."""
        return self._frame(table)

    @property
    def _report(self) -> Report:
        from kvscope.report.comparison import report

        return report(self.comparison)


@dataclass(frozen=True, slots=True, repr=False)
class FleetResult(_Result):
    """What `simulate_fleet` returns; `study` has every fleet that was replayed."""

    study: FleetStudy

    @property
    def replicas(self) -> int | None:
        """The fewest replicas that meet the SLO, None where none of those tried do."""
        return self.study.fewest

    def to_polars(self, table: str = "fleets") -> pl.DataFrame:
        """Return a list of the document: `fleets`, a row per fleet, or `lines`, one per router."""
        return self._frame(table)

    @property
    def _report(self) -> Report:
        from kvscope.report.fleet import report

        return report(self.study)


def _is_table(rows: object) -> bool:
    return isinstance(rows, list) and all(isinstance(row, dict) for row in rows)


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the fields of a row; those of an object inside are named OUTER_INNER."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}_")
        elif not (isinstance(value, list) and _is_table(value)):
            yield prefix + name, value
