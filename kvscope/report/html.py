"""An analysis as one self-contained HTML file: no network, printable, with every string escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kvscope import __version__
from kvscope.report.section import Section, Table

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff;
       max-width: 1000px; margin: 2rem auto; padding: 0 1rem; }
p { margin: .35rem 0; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.2rem; margin-top: 2.2rem;
     border-bottom: 1px solid #d0d7de; padding-bottom: .2rem; }
.lead { color: #57606a; margin-top: .2rem; }
nav { margin: 1rem 0; display: flex; flex-wrap: wrap; gap: 0 1rem; }
nav a { white-space: nowrap; }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #eaeef2; }
th:first-child, td:first-child { text-align: left; white-space: nowrap; }
td.plot { text-align: left; color: #0072B2; white-space: pre; font-family: monospace; }
.note, footer { color: #57606a; font-size: .87rem; } .scroll { overflow-x: auto; }
.figure { break-inside: avoid; margin: 1rem 0; }
@media print { body { margin: 0; max-width: none; } nav { display: none; }
  section, table, tr { break-inside: avoid; } .scroll { overflow: visible; }
  .modebar { display: none !important; } }
"""


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole document; plotly's script stands in it once."""
    from plotly.offline import get_plotlyjs  # 5 MB of JavaScript: only where a report is asked for

    anchors = [f"section-{number}" for number in range(1, len(sections) + 1)]
    menu = "".join(
        f'<a href="#{anchor}">{escape(section.title)}</a>'
        for anchor, section in zip(anchors, sections, strict=True)
    )
    body = "".join(
        _section(anchor, section) for anchor, section in zip(anchors, sections, strict=True)
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f"<script>{get_plotlyjs()}</script></head><body>"
        f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p><nav>{menu}</nav>'
        f"{body}<footer>kvscope {escape(__version__)}</footer></body></html>\n"
    )


def fragment(sections: Sequence[Section]) -> str:
    """Return the words and tables of sections, for a cell of a notebook."""
    return "".join(
        f"<h4>{escape(section.title)}</h4>"
        + "".join(f"<p>{escape(sentence)}</p>" for sentence in section.sentences)
        + "".join(_table(table) for table in section.tables)
        for section in sections
    )


def _section(anchor: str, section: Section) -> str:
    words = "".join(f"<p>{escape(sentence)}</p>" for sentence in section.sentences)
    figures = "".join(
        '<div class="figure">'
        + figure().to_html(
            full_html=False,
            include_plotlyjs=False,
            config={"displaylogo": False, "responsive": True},
        )
        + "</div>"
        for figure in section.figures
    )
    tables = "".join(_table(table) for table in section.tables)
    return (
        f'<section id="{anchor}"><h2>{escape(section.title)}</h2>{words}{figures}{tables}</section>'
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    # A column without a title, past the first, holds bars made of characters.
    open_cell = [
        "<td>" if title or not at else '<td class="plot">' for at, title in enumerate(table.columns)
    ]
    rows = "".join(
        "<tr>"
        + "".join(f"{tag}{escape(cell)}</td>" for tag, cell in zip(open_cell, row, strict=True))
        + "</tr>"
        for row in table.rows
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<div class="scroll"><table><caption>{escape(table.title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}"
    )
