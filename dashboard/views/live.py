"""Live: what a recording that grows hits now, and could hit, as `kvscope watch` says it."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import streamlit as st
from msgspec.structs import replace

from dashboard import answers, render, sidebar
from dashboard.arguments import file_below
from kvscope.app.options import typed
from kvscope.app.watch import Watch, WatchOptions, WatchRequest, watch_request
from kvscope.ingest.follow import Follower
from kvscope.report import watch
from kvscope.report.report import page

_EVERY_S, _REPLAY_S = 2.0, 10.0
_STEPS = 16  # reads of a recording at a time, of 8 MiB


class Followed:
    """A recording that is followed, for all tabs that show it."""

    def __init__(self, path: str, request: WatchRequest) -> None:
        self.watch, self._follower, self._reading = Watch(request), Follower(Path(path)), Lock()

    def read(self) -> None:
        """Take what is new; replay the window where it is time."""
        with self._reading:
            if any(self.watch.take(self._follower) for _ in range(_STEPS)):
                self.watch.refresh()

    def close(self) -> None:
        """Close the recording."""
        self._follower.close()


def show() -> None:
    """Draw what to follow, then the figures of its latest requests, again and again."""
    sidebar.draw_title("Live")
    st.caption("Follows a recording of `kvscope record` or of the plugin while it is written.")
    with sidebar.form("Follow", "follow"):
        path = sidebar.typed(
            "recording",
            "Recording",
            "",
            lambda text: file_below(text, folders=True),
            "A file or a folder below the one that `kvscope dashboard --folder` names.",
        )
        asked = sidebar.options_row(
            WatchOptions,
            ("capacity_blocks", "Capacity in blocks", {"key": "follow_blocks"}),
            ("recommendation", "Recommendation", {"key": "follow_file", "parse": file_below}),
        )
    if path is None:
        st.info("Name a recording. `kvscope watch` follows one without a browser.")
        return
    options, where = WatchOptions(**asked, every=_REPLAY_S), sidebar.choices().deployment
    if where is None or options.capacity_blocks or options.recommendation:
        request = watch_request(options)
    else:  # in the deployment's pool
        request = WatchRequest(options, capacity_tokens=where.pool.tokens)
        size = where.model and where.model.bytes_for(where.pool.tokens)
        options = replace(options, capacity=size, model=sidebar.choices().options["model"])
    followed = _followed(f"{path} {request}", path, request)
    title = f"kvscope watch: {path}"
    shown = {"HTML": lambda: page(title, "", [watch.section(followed.watch)])}
    answers.draw_exports(["watch", path, *typed(options)], shown)
    _show(followed)


@st.cache_resource(max_entries=8, show_spinner=False, on_release=Followed.close)
def _followed(key: str, _path: str, _request: WatchRequest) -> Followed:
    return Followed(_path, _request)


@st.fragment(run_every=_EVERY_S)
def _show(followed: Followed) -> None:
    followed.read()
    render.show([watch.section(followed.watch)], titles=False)


show()
