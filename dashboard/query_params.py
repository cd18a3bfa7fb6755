"""Deep links: what is chosen on a page stands in its address, and outlives a visit elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import streamlit as st
from streamlit.elements.lib.mutable_tab_container import TabContainer


def seed(
    key: str,
    default: Any,
    read: Callable[[str], Any] = str,
    among: Collection[Any] | None = None,
) -> None:
    """Give the widget `key` its first value: the address's, the one it had, or the default."""
    if key in st.session_state:
        return
    text = st.query_params.get(key) or _memory().get(key) or None
    value = default
    if text is not None:
        try:
            value = read(text)
        except ValueError:  # an address that somebody typed
            value = default
    if among is not None:
        unknown = set(value) - set(among) if isinstance(value, list) else {value} - set(among)
        value = default if unknown else value
    st.session_state[key] = value


def remember(*keys: str) -> None:
    """Write what these widgets say into the address."""
    told: dict[str, str] = {}
    for key in keys:
        value = st.session_state.get(key)
        text = ",".join(value) if isinstance(value, list) else "" if value is None else str(value)
        told[key] = text
    _keep(told)


def choose(key: str, text: str) -> None:
    """Let the widget `key` say this from the next run on, which may begin at once."""
    st.session_state.pop(key, None)
    _keep({key: text})
    st.query_params[key] = text


def _keep(told: Mapping[str, str]) -> None:
    """Write this into the address, that of the next visit too."""
    _memory().update(told)
    _tell(told)


@contextmanager
def told_once() -> Iterator[None]:
    """Within the block the address is written once, at its end.

    Each time that it changes, the browser has one more place to go back to.
    """
    told: dict[str, str] = {}
    st.session_state["address"] = told
    try:
        yield
    finally:
        st.session_state.pop("address", None)
        _tell(told)


def _tell(told: Mapping[str, str]) -> None:
    """Write this into the address, now or at the end of the run; what is empty is taken out."""
    waiting: dict[str, str] | None = st.session_state.get("address")
    if waiting is not None:
        waiting.update(told)
        return
    new = {key: text for key, text in told.items() if st.query_params.get(key, "") != text}
    if new:
        st.query_params.from_dict(
            {key: text for key, text in (st.query_params.to_dict() | new).items() if text}
        )


def tabs(key: str, titles: Sequence[str]) -> Sequence[TabContainer]:
    """Tabs whose choice stands in the address too, unless it is the first."""
    seed(key, titles[0], among=titles)
    places: dict[str, int] = st.session_state.setdefault("places", {})
    if st.session_state[key] not in titles:  # they may tell of another capacity now
        st.session_state[key] = titles[min(places.get(key, 0), len(titles) - 1)]
    found = st.tabs(titles, key=key, on_change="rerun")
    chosen = st.session_state[key]
    places[key] = titles.index(chosen)
    _keep({key: "" if chosen == titles[0] else chosen})
    return found


def linked(key: str) -> bool:
    """Whether the address is of a page that shows what the job `key` found."""
    return st.query_params.get(_ran(key)) == "1"


def link(key: str, *, shown: bool) -> None:
    """Let the address say whether the page shows what the job `key` finds."""
    _tell({_ran(key): "1" if shown else ""})


def _ran(key: str) -> str:
    return f"ran_{key}"


def names(text: str) -> list[str]:
    """A list as the address writes it."""
    return [part for part in text.split(",") if part]


def _memory() -> dict[str, str]:
    found: dict[str, str] = st.session_state.setdefault("memory", {})
    return found
