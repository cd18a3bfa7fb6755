"""Keep widget values in the page's address, and across visits to other pages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import streamlit as st
from streamlit.elements.lib.mutable_tab_container import TabContainer


def initialize(
    key: str,
    default: Any,
    parse: Callable[[str], Any] = str,
    allowed: Collection[Any] | None = None,
) -> None:
    """Set the widget `key` to its value, else the address's, its last one, or the default.

    The default replaces what cannot be parsed and what is not `allowed`; of a list, the allowed
    items stay. What of the address was replaced is among `replaced()`.
    """
    text = None
    if key in st.session_state:
        value = wanted = st.session_state[key]
    else:
        text = st.query_params.get(key) or _memory().get(key)
        try:
            value = wanted = parse(text) if text else default
        except (ValueError, OverflowError):  # typed by hand
            value, wanted = default, None
    if allowed is not None and isinstance(value, list):
        value = [item for item in value if item in allowed] or (default if value else [])
    elif allowed is not None and value not in allowed:
        value = default
    if text and value != wanted and st.query_params.get(key) == text:
        _replaced()[key] = (text, value)
    unsent = _unsent()
    pages: dict[str, str] = st.session_state.setdefault("drawn on", {})
    if pages.get(key) != st.session_state.get("page"):  # a page's widget has a state of its own
        pages[key] = st.session_state.get("page", "")
        unsent.add(key)
    if key not in st.session_state or st.session_state[key] != value or key in unsent:
        st.session_state[key] = value
        unsent.add(key)


@contextmanager
def synced(
    key: str,
    default: Any,
    parse: Callable[[str], Any] = str,
    allowed: Collection[Any] | None = None,
) -> Iterator[None]:
    """Initialize the widget `key` before the block, which draws it; then write its value."""
    initialize(key, default, parse, allowed)
    yield
    write(key)


def replaced() -> list[str]:
    """Return a sentence for each value of the address that its widget could not take.

    It lasts until the widget gets another value or leaves the page.
    """
    known = _replaced()
    for key in [key for key, (_, value) in known.items() if st.session_state.get(key) != value]:
        del known[key]
    return [
        f"{key}={text} in the address cannot be shown here. The page uses {_text(value) or 'none'}."
        for key, (text, value) in known.items()
    ]


def write(*keys: str) -> None:
    """Write the values of these widgets to the address."""
    _remember({key: _text(st.session_state.get(key)) for key in keys})


def set_next(key: str, text: str) -> None:
    """Set the widget `key` from the next run on, which may begin at once."""
    st.session_state.pop(key, None)
    _remember({key: text})
    st.query_params[key] = text


@contextmanager
def written_once() -> Iterator[None]:
    """Collect changes of the address in the block and apply them together at its end.

    Each change adds an entry to the browser's history.
    """
    changes: dict[str, str] = {}
    st.session_state["address"] = changes
    try:
        yield
        _unsent().clear()
    finally:
        st.session_state.pop("address", None)
        _apply(changes)


def tabs(key: str, titles: Sequence[str]) -> Sequence[TabContainer]:
    """Draw tabs; the open one is in the address, unless it is the first.

    Where titles change, such as with a capacity in them, the tab at the same position stays open.
    """
    positions: dict[str, int] = st.session_state.setdefault("tab_positions", {})
    initialize(key, titles[min(positions.get(key, 0), len(titles) - 1)], allowed=titles)
    containers = st.tabs(titles, key=key, on_change="rerun")
    title = st.session_state[key]
    positions[key] = titles.index(title)
    _remember({key: "" if title == titles[0] else title})
    return containers


def shown(key: str) -> str:
    """Return the query parameter of a page that shows the result of the job `key`."""
    return f"ran_{key}"


def shows_result(key: str) -> bool:
    """Return whether the address is of a page that shows the result of the job `key`."""
    return st.query_params.get(shown(key)) == "1"


def set_shows_result(key: str, *, shows: bool) -> None:
    """Write to the address whether the page shows the result of the job `key`."""
    _apply({shown(key): "1" if shows else ""})


def address() -> dict[str, str]:
    """Return the page's query parameters, those included that are yet to be written."""
    pending: dict[str, str] = st.session_state.get("address") or {}
    return {name: text for name, text in (st.query_params.to_dict() | pending).items() if text}


def open_page(page: str, parameters: Mapping[str, str]) -> None:
    """Go to a page (its file), with every widget as these query parameters say."""
    memory = _memory()
    for key in {*memory, *parameters}:
        st.session_state.pop(key, None)
    memory.clear()
    memory.update(parameters)
    st.switch_page(page, query_params=dict(parameters))


def parse_list(text: str) -> list[str]:
    """Return the items of a list as the address has it."""
    return [part for part in text.split(",") if part]


def _remember(texts: Mapping[str, str]) -> None:
    """Write these to the address, now and on the next visit of the page."""
    _memory().update(texts)
    _apply(texts)


def _apply(texts: Mapping[str, str]) -> None:
    """Write these to the address, now or at the end of `written_once`; remove empty ones."""
    pending: dict[str, str] | None = st.session_state.get("address")
    if pending is not None:
        pending.update(texts)
        return
    new = {key: text for key, text in texts.items() if st.query_params.get(key, "") != text}
    if new:
        st.query_params.from_dict(
            {key: text for key, text in (st.query_params.to_dict() | new).items() if text}
        )


def _unsent() -> set[str]:
    """Return the widgets whose value may not have reached the browser.

    Streamlit sends a value only in the run that sets it, and drops what an interrupted run sent.
    """
    keys: set[str] = st.session_state.setdefault("unsent", set())
    return keys


def _replaced() -> dict[str, tuple[str, Any]]:
    """Return the values of the address that were replaced, and by what, by their widgets."""
    values: dict[str, tuple[str, Any]] = st.session_state.setdefault("replaced", {})
    return values


def _text(value: Any) -> str:
    """Return a widget's value as the address has it."""
    return ",".join(value) if isinstance(value, list) else "" if value is None else str(value)


def _memory() -> dict[str, str]:
    memory: dict[str, str] = st.session_state.setdefault("memory", {})
    return memory
