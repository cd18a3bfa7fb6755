"""A store for the pages, and nothing kept from one test to the next."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from kvscope.app import worker_process
from kvscope.ingest.pipeline import ingest
from kvscope.store.db import open_store
from tests.dashboard.browsing import Page, Served, serving, tabs
from tests.dashboard.chats import write_chats


@pytest.fixture(autouse=True, scope="session")
def without_components() -> Iterator[None]:
    """Keep Streamlit from reading what all installed packages say of themselves, for each page.

    That takes 0.15 s, and none of them has a component of Streamlit's.
    """
    from streamlit.components.v2 import manifest_scanner

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(manifest_scanner, "scan_component_manifests", list)
        yield


class _Kept(list[Any]):
    """Idle processes, to which one more may always be added."""

    def __bool__(self) -> bool:
        return False


@pytest.fixture(autouse=True, scope="session")
def kept_processes() -> Iterator[None]:
    """Keep all processes that worked for pages: each imports for seconds.

    The dashboard keeps one, as it analyzes a trace once. Here each test does, beside its page.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(worker_process, "_idle", idle := _Kept())
        yield
        for worker in idle:
            worker.end()


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """Keep what one test's store gave from another test."""
    import streamlit as st

    st.cache_resource.clear()
    main = sys.modules["__main__"]
    yield
    # A page that ran is left as the main module, which a process spawned later would run.
    sys.modules["__main__"] = main
    if (cache := sys.modules.get("dashboard.background_cache")) is not None:
        cache.settle()  # or it would have the store open
    st.cache_resource.clear()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, stored_chats: Path) -> Iterator[Served]:
    """Run a dashboard, for all tests with a browser, on a store with a small trace."""
    folder = tmp_path_factory.mktemp("served")
    db = str(folder / "store.duckdb")
    copyfile(stored_chats, db)
    record = folder / "watched" / "record"
    record.parent.mkdir()
    with serving(db, record=record) as (address, _):
        yield Served(address, db, record)


@pytest.fixture(scope="module")
def new_tab() -> Iterator[Callable[[int, str], Page]]:
    """Return what opens a tab of one Chromium."""
    with tabs() as open_tab:
        yield open_tab


@pytest.fixture(scope="session")
def stored_chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with 600 requests in conversations."""
    folder = tmp_path_factory.mktemp("chats")
    with open_store(str(folder / "store.duckdb")) as store:
        ingest(store, str(write_chats(folder / "chats.jsonl")))
    return folder / "store.duckdb"


@pytest.fixture
def trace(stored_chats: Path) -> Path:
    """Return the file with these requests."""
    return stored_chats.with_name("chats.jsonl")


@pytest.fixture
def db(tmp_path: Path, stored_chats: Path) -> str:
    """Return a store of its own with that trace."""
    return str(copyfile(stored_chats, tmp_path / "store.duckdb"))
