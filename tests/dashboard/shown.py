"""The dashboard run by Streamlit's own test harness, and what it then says."""

from __future__ import annotations

import html
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import background_cache, job
from kvscope.cli.app import run
from kvscope.core.files import data_folder
from tests.cli.shell import Streams

DASHBOARD = data_folder("dashboard")
PAGES = (
    "reuse",
    "time",
    "space",
    "capacity",
    "why",
    "lab",
    "fleets",
    "recommendation",
    "validation",
)
EVERY_PAGE = ("overview", "live", *PAGES)
_PATIENCE_S = 240  # kernels may have to be compiled


def shown(
    db: str,
    monkeypatch: pytest.MonkeyPatch,
    page: str = "",
    *,
    folder: Path | None = None,
    **address: str,
) -> AppTest:
    """Return the app on this store at this page; it may read files in `folder`."""
    readable = [] if folder is None else ["--folder", str(folder)]
    monkeypatch.setattr("sys.argv", ["app.py", "--db", db, *readable])
    app = AppTest.from_file(str(DASHBOARD / "app.py"), default_timeout=_PATIENCE_S)
    for name, value in address.items():
        app.query_params[name] = value
    if page:
        app.switch_page(f"views/{page}.py")
    return drawn(app.run())


def drawn(app: AppTest) -> AppTest:
    """Return the app once all is found that its page, or another, needs of the trace."""
    background_cache.settle()
    return app.run() if waits(app) else app


def waits(app: AppTest) -> bool:
    """Whether the page says how far an analysis is."""
    return any(one.key == "stop analysis" for one in app.button)


def words(app: AppTest) -> str:
    """All that the page says in sentences, as they were before Markdown."""
    return "\n".join(one.value for one in (*app.markdown, *app.info)).replace("\\", "")


def captions(app: AppTest) -> str:
    """All that the page and the sidebar say in small print, as it was before Markdown."""
    return "\n".join(one.value for one in app.caption).replace("\\", "")


def flags(app: AppTest) -> list[str]:
    """Return what the page offers to copy, apart from the command line of its export."""
    return [one.value for one in app.code if not one.value.startswith("kvscope ")]


def page_html(app: AppTest) -> str:
    """Return what the page writes as HTML."""
    return "".join(one.proto.body for one in app.get("html"))


def tiles(app: AppTest) -> dict[str, str]:
    """Return the tiles' values by their labels."""
    found = re.findall(r"<small>([^<]*)</small><b>(?:[✓✗] )?(.*?)</b>", page_html(app))
    return {html.unescape(label): html.unescape(value) for label, value in found}


def tile_looks(app: AppTest) -> set[str]:
    """Return the classes of the tiles: met, missed, or neither."""
    return set(re.findall(r'"(tile|tile met|tile missed)"', page_html(app)))


def titles(app: AppTest) -> list[str]:
    """Return the titles of the sections."""
    return [one.value for one in app.header]


def table_with(app: AppTest, *columns: str) -> Any:
    """Return the first table that has these columns."""
    return next(one.value for one in app.dataframe if {*columns} <= {*one.value.columns})


def told(capsys: Streams, *arguments: str) -> dict[str, Any]:
    """Return the document that the command prints."""
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def worked(app: AppTest) -> AppTest:
    """Return the app once no job of its page is under way."""
    until = time.monotonic() + _PATIENCE_S
    while any(one.key.startswith("stop ") for one in app.button if one.key):
        assert time.monotonic() < until
        _await_jobs()
        app.run()
    return app


def settled(app: AppTest, done: str) -> AppTest:
    """Return the app once its job has ended and a section whose title begins so is there."""
    until = time.monotonic() + _PATIENCE_S
    while not any(title.startswith(done) for title in titles(app)):
        assert not app.exception
        assert not app.error
        assert time.monotonic() < until
        _await_jobs()
        app.run()
    return app


def _await_jobs() -> None:
    """Wait for the jobs under way: to draw a page meanwhile takes CPU time from them."""
    running = [each for each in (*job.all_jobs(), *background_cache.analyses()) if not each.ended]
    for each in running:
        each.wait(_PATIENCE_S)
    if not running:
        time.sleep(0.1)
