"""A result in every form, for the command line, the Python API and HTML pages.

The page is one self-contained file: no network, printable, with every string escaped. plotly's
script, most of its size, is compressed and unpacked by the browser.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from msgspec import Struct

from kvscope import __version__
from kvscope.core.files import HTML_MARK
from kvscope.core.trace import Trace
from kvscope.report import style
from kvscope.report.glossary import meaning
from kvscope.report.section import Section, Table, Tile, check_names
from kvscope.report.words import trace_in_words


class Report(Struct, frozen=True):
    """A command's result in several forms, each built on demand.

    `title` is the command's, such as "kvscope tune". `document` returns the JSON document as an
    object, `screen` the sections for one screen, `sections` all of them. A result without a single
    trace has a `heading`: a name in place of the trace's and a sentence in place of its facts.
    """

    title: str
    trace: Trace | None
    document: Callable[[], Any]
    screen: Callable[[], Sequence[Section]]
    sections: Callable[[], Sequence[Section]]
    heading: tuple[str, str] = ("", "")

    @property
    def name(self) -> str:
        """The name of the trace, or the title of the heading."""
        return self.trace.name if self.trace else self.heading[0]

    @property
    def lead(self) -> str:
        """A sentence on the trace, or that of the heading."""
        return trace_in_words(self.trace) if self.trace else self.heading[1]

    def html(self) -> str:
        """Return all sections as one self-contained HTML page."""
        return page(f"{self.title}: {self.name}", self.lead, self.sections())

    def select(self, names: Sequence[str], *, full: bool = False) -> Sequence[Section]:
        """Return the named sections, all sections if `full`, or else the one-screen report.

        Names match without regard to case. Raises UsageError for a name that this report lacks.
        """
        if not full and not names:
            return self.screen()
        every = self.sections()
        if full:
            return every
        check_names(names, list(dict.fromkeys(section.name for section in every)))
        return [section for name in names for section in every if section.name == name.lower()]


TILES = """
.tiles { display: grid; gap: .7rem; margin: .8rem 0;
         grid-template-columns: repeat(auto-fit, minmax(min(17rem, 100%), 1fr)); }
.tile { border: 1px solid rgba(128, 132, 149, .4); border-left: 4px solid #808495;
        border-radius: .4rem; padding: .5rem .8rem; min-width: 0; overflow-wrap: anywhere; }
.tile.met { border-left-color: #009E73; } .tile.missed { border-left-color: #D55E00; }
.tile b { display: block; font-size: 1.35rem; line-height: 1.3; font-weight: 600; }
.tile small { display: block; font-size: .8rem; }
"""
_STYLE = (
    TILES
    + """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de;
        --faint: #eaeef2; --link: #0a58ca; --bar: #0072B2; --paper: #fff; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9aa4af; --line: #3d444d; --faint: #262c34; --link: #6cb6ff;
          --bar: #56B4E9; --paper: #12161c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 1000px; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
p { margin: .35rem 0; } a { color: var(--link); }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.2rem; margin-top: 2.2rem;
     border-bottom: 1px solid var(--line); padding-bottom: .2rem; }
.lead { color: var(--soft); margin-top: .2rem; }
nav { margin: 1rem 0; display: flex; flex-wrap: wrap; gap: 0 1rem; }
nav a { white-space: nowrap; }
table { border-collapse: collapse; margin: .3rem 0; font-variant-numeric: tabular-nums; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; } thead { vertical-align: bottom; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--faint); }
td { white-space: nowrap; }
th { overflow-wrap: normal; }
th.words, td.words { text-align: left; }
td.words { white-space: normal; min-width: 9rem; }
td.plot { text-align: left; color: var(--bar); white-space: pre; font-family: monospace; }
.note, footer { color: var(--soft); font-size: .87rem; } .scroll { overflow-x: auto; }
.figure { break-inside: avoid; margin: 1rem 0; overflow: hidden; }
@media (max-width: 600px) { body { margin: 1rem auto; padding: 0 .6rem; }
  th, td { padding: .2rem .4rem; } }
@media print { body { margin: 0; max-width: none; } nav { display: none; }
  section, table, tr { break-inside: avoid; } .scroll { overflow: visible; }
  .modebar { display: none !important; } }
"""
)

# Draws every chart in the colours of the screen, and again when these change or paper is printed.
_SCRIPT = """
const text = id => document.getElementById(id).textContent;
const dark = matchMedia("screen and (prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 600px)");
async function unpack() {
  const packed = Uint8Array.from(atob(text("plotly")), letter => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}
function colours(template) {
  if (!dark.matches) return template;
  const axis = {gridcolor: "#2d343d", linecolor: "#2d343d", zerolinecolor: "#2d343d"};
  const layout = {...template.layout, font: {color: "#c9d1d9"}, paper_bgcolor: "#12161c",
    plot_bgcolor: "#12161c", xaxis: {...template.layout.xaxis, ...axis},
    yaxis: {...template.layout.yaxis, ...axis}};
  return {...template, layout};
}
function draw(figures, template) {
  for (const [id, {data, layout}] of Object.entries(figures)) {
    const place = document.getElementById(id);
    const traces = structuredClone(data);
    const shown = structuredClone({...layout, template: colours(template)});
    if (dark.matches) traces.forEach(trace => { if (trace.colorscale) trace.reversescale = true; });
    const names = data.filter(trace => trace.name && trace.showlegend !== false)
      .map(trace => trace.name.length);
    if (data.length > 1 && names.length) {  // room for the legend, in as many lines as it takes
      const across = Math.max(1, Math.floor(place.clientWidth / (60 + 6 * Math.max(...names))));
      const below = 19 * (Math.ceil(names.length / across) - 1);
      shown.height += below;
      shown.margin.b += below;
    }
    if (narrow.matches) {
      shown.title.font.size = 13;
      Object.assign(shown.margin, {l: Math.min(shown.margin.l, 45), r: 10});
    }
    Plotly.react(place, traces, shown, {displaylogo: false, responsive: true,
      displayModeBar: narrow.matches ? false : "hover"});
  }
}
unpack().then(() => {
  const {figures, template} = JSON.parse(text("figures"));
  const again = () => draw(figures, template);
  again();
  dark.addEventListener("change", again);
  narrow.addEventListener("change", again);
}).catch(() => {
  document.getElementById("charts").textContent =
    "This browser cannot draw the charts; the tables are complete.";
});
"""


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return the whole HTML page, with plotly's script embedded once, compressed."""
    from plotly.offline import get_plotlyjs

    menu: list[str] = []
    body: list[str] = []
    figures: dict[str, Mapping[str, object]] = {}
    for number, section in enumerate(sections, start=1):
        menu.append(f'<a href="#section-{number}">{escape(section.title)}</a>')
        charts = ""
        for build in section.figures:
            chart = build().to_dict()
            chart["layout"].pop("template")
            name = f"figure-{len(figures) + 1}"
            figures[name] = chart
            about = escape(chart["layout"]["title"]["text"])
            charts += f'<div class="figure" id="{name}" aria-label="Chart: {about}"></div>'
        body.append(
            f'<section id="section-{number}"><h2>{escape(section.title)}</h2>{_words(section)}'
            f"{charts}{''.join(map(_table, section.tables))}</section>"
        )
    packed = base64.b64encode(zlib.compress(get_plotlyjs().encode(), 9)).decode()
    return (
        f'{HTML_MARK}<meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p><nav>{"".join(menu)}</nav>'
        f'<p class="note" id="charts"></p>{"".join(body)}'
        f"<footer>kvscope {escape(__version__)}</footer>"
        f'<script type="application/json" id="figures">{_json(figures)}</script>'
        f'<script type="text/plain" id="plotly">{packed}</script><script>{_SCRIPT}</script>'
        "</body></html>\n"
    )


def fragment(sections: Sequence[Section]) -> str:
    """Return the sentences and tables of sections as HTML for a notebook cell."""
    return "".join(
        f"<h4>{escape(section.title)}</h4>{_words(section)}{''.join(map(_table, section.tables))}"
        for section in sections
    )


def _words(section: Section) -> str:
    words = "".join(f"<p>{escape(sentence)}</p>" for sentence in section.sentences)
    return tiles(section.tiles) + words


def tiles(shown: Sequence[Tile]) -> str:
    """Return tiles side by side as HTML; colour and a sign mark met and missed targets."""
    looks = {True: (" met", "✓ "), False: (" missed", "✗ "), None: ("", "")}
    return (
        '<div class="tiles">' * bool(shown)
        + "".join(
            f'<div class="tile{looks[tile.good][0]}"><small>{escape(tile.label)}</small>'
            f"<b>{looks[tile.good][1]}{escape(tile.value)}</b><small>{escape(tile.about)}</small></div>"
            for tile in shown
        )
        + "</div>" * bool(shown)
    )


def _json(figures: Mapping[str, object]) -> str:
    """Return charts and their shared template as JSON, from which the page's script draws them.

    `figures` has plotly's charts by the id of the HTML element in which each is drawn. `<` is
    escaped, so that no text can end the script element around the JSON.
    """
    from plotly.utils import PlotlyJSONEncoder

    document = {"figures": figures, "template": style.template().to_plotly_json()}
    return json.dumps(document, cls=PlotlyJSONEncoder, separators=(",", ":")).replace(
        "<", "\\u003c"
    )


def _table(table: Table) -> str:
    # A column without a title, past the first, holds bars made of characters.
    classes = [
        ' class="words"' if not at or at in table.words else "" if title else ' class="plot"'
        for at, title in enumerate(table.columns)
    ]

    def cells(tag: str, row: Sequence[str]) -> str:
        about = [meaning(cell) if tag == "th" else None for cell in row]
        titles = [f' title="{escape(text)}"' if text else "" for text in about]
        shown = zip(classes, titles, row, strict=True)
        return "".join(f"<{tag}{look}{title}>{escape(cell)}</{tag}>" for look, title, cell in shown)

    rows = "".join(f"<tr>{cells('td', row)}</tr>" for row in table.rows)
    title = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'{title}<div class="scroll"><table><thead><tr>{cells("th", table.columns)}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{note}"
    )
