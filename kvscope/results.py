"""Results of the functions of the Python API: documents, frames, figures and HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope.app.monitor import LogMonitor
from kvscope.core.errors import UsageError
from kvscope.usecases import USE_CASES
from kvscope.usecases.base import AnyUseCase, use_case

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import polars as pl

    from kvscope.report.report import Report


@dataclass(frozen=True, slots=True, repr=False)
class UseCaseResult:
    """The result of a use case's function, with its JSON document, frames, figures and HTML.

    Its attributes are the fields of the result object, and that object itself under the last word
    of its class name: `explanation` for an `Explanation`, `study` for a `FleetStudy`.
    """

    _case: AnyUseCase
    _answer: Any

    def __getattr__(self, name: str) -> Any:
        if name == attribute_of(self._case):
            return self._answer
        return getattr(self._answer, name)

    @property
    def _report(self) -> Report:
        return self._case.report(self._answer)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._report.name}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of the command, as docs/json.md describes it."""
        from kvscope.usecases.documents import to_dict

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

    def save_html(self, path: str | PathLike[str], *, force: bool = False) -> None:
        """Write the HTML report, whole or not at all.

        Without `force`, raises UsageError for an existing file that kvscope did not write.
        """
        from kvscope.core.files import check_replaceable, write_text

        check_replaceable(fspath(path), force=force)
        write_text(Path(path), self._report.html())

    def _repr_html_(self) -> str:
        from kvscope.report.report import fragment

        return fragment(self._report.screen())

    def save(self, path: str | PathLike[str] | None = None, *, force: bool = False) -> None:
        """Write the command's output file, by default under its usual name; log what was done.

        The logger is `kvscope`. Without `force`, a file that kvscope did not write raises
        UsageError, a recommended change stays if the new verdict is another, and a change that the
        deployment cannot or should not run is not written. Raises AttributeError if the command
        writes no file.
        """
        from kvscope.core.files import check_replaceable

        file = self._case.file
        if file is None:
            raise AttributeError(f"kvscope {self._case.name} writes no file")
        target = fspath(path or file.path)
        check_replaceable(target, force=force)
        LogMonitor().note(file.write(self._answer, target, force=force))

    def to_polars(self, table: str | None = None) -> pl.DataFrame:
        """Return a table of the JSON document as a frame, with a column for each nested field.

        `table` is the key of a list of objects in `to_dict()`; None: the main one of the command.
        Raises UsageError, which names all tables, for another key.
        """
        import polars as pl

        table = table or self._case.table
        document = self.to_dict()
        tables = [name for name, rows in document.items() if _is_table(rows)]
        if table not in tables:
            raise UsageError(
                f"no table {table!r}", where="table", remedy=f"name one of {', '.join(tables)}"
            )
        rows = [dict(_flat(row)) for row in document[table]]
        return pl.DataFrame(rows, infer_schema_length=None)


def attribute_of(case: AnyUseCase) -> str:
    """Return the attribute name of the whole result: the last word of its class, in lower case."""
    words: list[str] = re.findall("[A-Z][a-z]*", case.run.__annotations__["return"])
    return words[-1].lower()


@cache
def result_class(name: str) -> type[UseCaseResult]:
    """Return the class, such as AnalysisResult, of what the function of command `name` returns."""
    entry = USE_CASES[name]
    about = f"What `{entry.function}` returns; `{attribute_of(use_case(name))}` has it all."
    facts = {"__doc__": about, "__module__": __name__, "__slots__": ()}
    return type(entry.returns, (UseCaseResult,), facts)


def _is_table(rows: object) -> bool:
    return isinstance(rows, list) and all(isinstance(row, dict) for row in rows)


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the fields of a row; fields of nested objects are named OUTER_INNER."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}_")
        elif not (isinstance(value, list) and _is_table(value)):
            yield prefix + name, value
