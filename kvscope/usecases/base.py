"""The declaration of a use case. This module loads neither NumPy nor a kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from msgspec import Struct

from kvscope.app.gates import Figures, Known
from kvscope.app.options import AS_STORED, Reading

if TYPE_CHECKING:
    from kvscope.app.monitor import Monitor
    from kvscope.core.runs import Run
    from kvscope.core.trace import Trace
    from kvscope.ingest.pipeline import Foresee
    from kvscope.report.report import Report
    from kvscope.store.file import Stores

Asked = TypeVar("Asked")
Request = TypeVar("Request")
Result = TypeVar("Result")


class Opened(Struct, frozen=True):
    """The store and the trace of a use case; `source`: the trace's name or path, if any.

    `load` returns the trace, ingested first if the store lacks it; its argument is called with a
    new trace before the trace is stored. `reading` says how to read a new trace.
    """

    stores: Stores
    source: str | None = None
    load: Callable[[Foresee | None], Trace] | None = None
    reading: Reading = AS_STORED

    @property
    def trace(self) -> Trace:
        """The trace, ingested first if the store lacks it; only for use cases that take one."""
        assert self.load is not None  # noqa: S101  (of a use case that takes none)
        return self.load(None)


class ResultFile(Struct, Generic[Result], frozen=True):
    """An output file of a command, by default at `path` (`-`: no file); `of` names its content.

    `write` takes the result, the path and the keyword `force`, and returns a sentence on the
    outcome; a file worth keeping is replaced only with `force`. The store keeps two texts with the
    report: `text`, the file's content (None if none should be written), and `summary`, a sentence.
    `missing` explains why there is no file if `UseCase.instead` answers.
    """

    path: str
    missing: str
    write: Callable[..., str]
    text: Callable[[Result], str | None] | None = None
    summary: Callable[[Result], str] | None = None
    of: str = "recommendation"


class UseCase(Struct, Generic[Asked, Request, Result], frozen=True, kw_only=True):
    """A use case: its request, its result, and how that is shown.

    `check` rejects wrong options before heavy imports; `run` computes. The result's fields are the
    JSON document, version `schema`, except those of type `Beside[...]`; `to_polars` returns the
    list `table`. `reporting` names the module of `kvscope.report` whose functions `screen`
    (default: all sections) and `sections` show the result, under `title`; a result of no trace or
    several has an attribute `heading` (title, sentence). `sections` are the names that `--section`
    takes. `known` returns the names of figures for `--fail-on`, None for no conditions. With
    `remembers`, the deployment and the SLO of earlier commands on the trace are filled in; without
    `takes_trace`, `run` gets the store alone, without `takes_store` neither. `stops`: Ctrl-C ends
    `run` early, which then raises Stopped or reports what is `unfinished`. `fails`: whether this
    result exits with code 4. `keeps`: the store keeps the report. `instead` returns another answer
    if the request leaves open what to compute. `file` is the output file. `of_run` returns the
    figures of a stored run as a baseline.
    """

    name: str
    title: str
    options: type[Asked]
    check: Callable[[Asked], Request]
    run: Callable[[Opened, Request, Monitor], Result]
    table: str
    reporting: str
    sections: tuple[str, ...] = ()
    schema: int = 1
    takes_trace: bool = True
    takes_store: bool = True
    known: Callable[[Request], Known] | None = None
    figures: Callable[[Result], Figures] | None = None
    remembers: bool = False
    stops: bool = False
    unfinished: Callable[[Result], str] | None = None
    fails: Callable[[Result], bool] | None = None
    of_run: Callable[[Run], Figures] | None = None
    keeps: bool = False
    instead: Callable[[Opened, Request, Monitor], Report | None] | None = None
    file: ResultFile[Result] | None = None

    @property
    def help(self) -> str | None:
        """The help of the command: the docstring of the module."""
        return import_module(f"kvscope.usecases.{self.name}").__doc__

    def report(self, result: Result) -> Report:
        """Return the report on a result: one screen, sections, HTML and JSON."""
        from kvscope.report.report import Report
        from kvscope.usecases.documents import document

        module = import_module(f"kvscope.report.{self.reporting}")
        figures = partial(self.figures, result) if self.figures else lambda: None
        return Report(
            self.title,
            getattr(result, "trace", None),
            document=lambda: document(self.name, result, figures(), self.schema),
            screen=lambda: getattr(module, "screen", module.sections)(result),
            sections=lambda: module.sections(result),
            heading=getattr(result, "heading", ("", "")),
        )


AnyUseCase: TypeAlias = UseCase[Any, Any, Any]


def use_case(name: str) -> AnyUseCase:
    """Return the use case of a command."""
    declared: AnyUseCase = import_module(f"kvscope.usecases.{name}").USE_CASE
    return declared
