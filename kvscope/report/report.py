"""A result in every form: what the command line, the Python API and the HTML page show of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from kvscope.core.trace import Trace
from kvscope.report import html
from kvscope.report.section import Section, check_names
from kvscope.report.words import trace_in_words


class Report(Struct, frozen=True):
    """The result of a command over a trace; each form is made when it is called for.

    A result that is not of one trace has a `heading`: what it is of, and a sentence.
    """

    title: str
    trace: Trace | None
    document: Callable[[], Any]
    screen: Callable[[], Sequence[Section]]
    sections: Callable[[], Sequence[Section]]
    heading: tuple[str, str] = ("", "")

    @property
    def name(self) -> str:
        """What the result is of."""
        return self.trace.name if self.trace else self.heading[0]

    @property
    def lead(self) -> str:
        """The trace in a sentence, or that of the heading."""
        return trace_in_words(self.trace) if self.trace else self.heading[1]

    def html(self) -> str:
        """Return all sections as one self-contained HTML page."""
        return html.page(f"{self.title}: {self.name}", self.lead, self.sections())

    def select(self, names: Sequence[str], *, full: bool = False) -> Sequence[Section]:
        """Return the sections of these names, all of them, or else the one screen.

        Names match without regard to case. Raises UsageError for one that this report lacks.
        """
        if not full and not names:
            return self.screen()
        every = self.sections()
        if full:
            return every
        check_names(names, list(dict.fromkeys(section.name for section in every)))
        return [section for name in names for section in every if section.name == name.lower()]
