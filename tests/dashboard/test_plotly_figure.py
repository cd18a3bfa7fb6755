"""Charts as the browser gets them: complete, and no more of them than are looked at."""

from __future__ import annotations

import json
from typing import Any

import plotly.graph_objects as go
import plotly.io
import pytest

from dashboard.render import ready
from dashboard.wording import escape, escape_around_commands
from kvscope.characterize.sources import Prefix
from kvscope.report import space, style
from tests.dashboard.shown import shown


def _sent(figure: go.Figure) -> tuple[str, dict[str, Any]]:
    """Return the title, and what `st.plotly_chart` would send."""
    title, made = ready(figure)
    return title, json.loads(plotly.io.to_json(made, validate=False))


def test_nothing_makes_plotly_draw_twice() -> None:
    """No title, no template, one revision: what Streamlit gives to plotly again is the same."""
    chart = style.figure("A title", "x (s)", "y", height=300)
    chart.add_scatter(x=[1, 2], y=[3, 4], name="a policy of a long name")
    chart.add_scatter(x=[1, 2], y=[3, 4], name="b")
    chart.update_yaxes(tickformat=".0%", title={"standoff": 3})
    title, sent = _sent(chart)
    layout = sent["layout"]
    assert title == "A title"
    assert not {"title", "template"} & layout.keys()
    assert (layout["datarevision"], layout["autosize"], layout["height"]) == (1, True, 300)
    assert layout["uirevision"]
    assert sent["data"] == json.loads(chart.to_json())["data"]
    assert layout["yaxis"]["tickformat"] == ".0%"
    assert layout["yaxis"]["title"] == {"font": {"size": 14}, "standoff": 3, "text": "y"}
    assert layout["xaxis"]["title"]["text"] == "x (s)"


def test_names_at_an_axis_have_room() -> None:
    """A bar's name is wrapped, not cut, and two axes of a subplot both get their style."""
    chart = style.figure("Bars", "share", "")
    chart.add_bar(y=["a category with quite a long name", "b"], x=[1, 2], orientation="h")
    sent = _sent(chart)[1]
    assert sent["data"][0]["y"] == ["a category<br>with quite a<br>long name", "b"]
    assert sent["layout"]["margin"]["l"] > 6 * len("with quite a")
    chart.update_layout(xaxis2={"title": {"text": "other"}})
    axes = _sent(chart)[1]["layout"]
    assert axes["xaxis2"]["gridcolor"] == axes["xaxis"]["gridcolor"]


def test_scales_fit_a_dark_page() -> None:
    """None ends in white there, of a heat map as of an icicle; on a light page all stay."""
    chart = style.heat_map("Map", ("x", [1, 2]), ("y", ["a"]), [[0.0, 1.0]], "")
    chart.add_icicle(labels=["a"], parents=[""], marker={"colorscale": style.SHADES})
    before = [trace["colorscale"] for trace in _scales(_sent(chart)[1])]
    _, figure = ready(chart, dark=True)
    for scale, light in zip(_scales(figure.sent), before, strict=True):
        assert scale["colorscale"] != light
        assert all(sum(bytes.fromhex(colour[1:])) < 3 * 200 for _, colour in scale["colorscale"])


def _scales(sent: dict[str, Any]) -> list[dict[str, Any]]:
    holders = [each for trace in sent["data"] for each in (trace, trace.get("marker", {}))]
    return [each for each in holders if "colorscale" in each]


def test_the_icicle_keeps_every_hit() -> None:
    """Where there are too many stretches to draw, their hits count as those before them."""
    found = [Prefix(1, 0, 1, 0, 10, 50, 200)]
    found += [Prefix(at, 1, at, 10, 1, at, 0) for at in range(2, 202)]
    trace = space.icicle_chart(found, 16).data[0]
    assert len(trace.ids) < len(found)
    assert sum(trace.values) == 16 * sum(one.hits for one in found)
    assert {*trace.parents} == {"", "0", "1"}
    assert "201" in trace.ids
    assert "2" not in trace.ids


def test_only_the_open_tab_is_drawn(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One chart a section; the address opens another tab, and forgets one that is not there."""

    def charts(**address: str) -> list[str]:
        app = shown(db, monkeypatch, "time", **address)
        assert not app.exception
        return [one.proto.alt for one in app.get("plotly_chart")]

    assert charts() == [
        "Chart: Reuse within a time",
        "Chart: Lifetime of blocks",
        "Chart: Turns per conversation",
    ]
    assert charts(charts_lifetimes="Mean lifetime over time")[1] == "Chart: Mean lifetime over time"
    assert charts(charts_lifetimes="Nowhere")[1] == "Chart: Lifetime of blocks"


def test_commands_are_code_and_all_else_is_text() -> None:
    """A command is left as it is; other backticks, and markup within some, are escaped."""
    assert escape_around_commands("a* `kvscope tune` adds") == r"a\* `kvscope tune` adds"
    for text in ("`b`", "`kvscope <b>`", "kvscope tune`"):
        assert escape_around_commands(text) == escape(text)
