"""What pages read: the store, opened briefly, and what is costly to find, kept by content."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st
from job import Job

from kvscope.characterize.prefixes import Prefix, hot_prefixes
from kvscope.facts import Run, RunSetting, Trace
from kvscope.kv_size import ModelKv
from kvscope.model.evidence import load_evidence
from kvscope.model.facts import Fit
from kvscope.model.fit import fit_to
from kvscope.show.analysis import Analysis, analyze, resized
from kvscope.simulate.lru_at import LruAnywhere, lru_anywhere
from kvscope.store import runs, traces
from kvscope.store.db import DEFAULT_PATH, Store, open_store
from kvscope.store.prompts import load_prompts
from kvscope.tune.evaluate import Stopped
from kvscope.validate.kept import Kept, kept_validations

_MOST_FITS = 4
_FITS: dict[str, Fit] = {}  # made by jobs, which run outside Streamlit's threads
_ONE_AT_A_TIME = threading.Lock()  # DuckDB refuses a file that is open in another mode


def database() -> str:
    """The store's path, from the command line of `streamlit run`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", default=DEFAULT_PATH)
    return str(parser.parse_known_args(sys.argv[1:])[0].db)


@contextmanager
def opened(*, write: bool = False) -> Iterator[Store]:
    """The store while the block runs. Raises StoreBusyError while another process writes it."""
    with _ONE_AT_A_TIME, open_store(database(), read_only=not write) as store:
        yield store


def all_traces() -> list[Trace]:
    """Every stored trace, the one last worked on first."""
    with opened() as store:
        return traces.all_traces(store)


def analysis(trace: Trace, model: ModelKv | None = None, hbm_bytes: int | None = None) -> Analysis:
    """What `kvscope analyze` finds, sizes for this model."""
    return resized(_analysis(_key(trace), trace), model, hbm_bytes)


def lru(trace: Trace) -> LruAnywhere:
    """LRU at any capacity, and the prompts it was read from."""
    return _lru(_key(trace), trace)


def stored_runs(trace: Trace) -> dict[RunSetting, list[Run]]:
    """The runs over a trace that the store keeps, by what they count and assume."""
    by_setting: dict[RunSetting, list[Run]] = {}
    with opened() as store:
        for one in runs.all_runs(store, trace):
            by_setting.setdefault(one.run.setting, []).append(one.run)
    return by_setting


def validations(trace: Trace) -> tuple[Kept, ...]:
    """What `kvscope validate` stored of the trace, the latest first."""
    with opened() as store:
        return kept_validations(store, trace)


def _key(trace: Trace) -> str:
    return f"{database()} {trace}"


# Facts are frozen: every session may be handed the same ones, without a copy.
@st.cache_resource(show_spinner="Analyzing the trace: once, then it is kept", max_entries=8)
def _analysis(key: str, _trace: Trace) -> Analysis:
    with opened() as store:
        return analyze(store, _trace)


@st.cache_resource(show_spinner="Measuring stack distances: once", max_entries=4)
def _lru(key: str, _trace: Trace) -> LruAnywhere:
    with opened() as store:
        prompts = load_prompts(store, _trace)
    return lru_anywhere(prompts)


def prefixes(trace: Trace) -> tuple[Prefix, ...]:
    """The prefixes that are reused most."""
    return _prefixes(_key(trace), trace)


def known_fit(trace: Trace) -> Fit | None:
    """What `kvscope fit` finds, if somebody here has asked for it before."""
    return _FITS.get(_key(trace))


def fitted(job: Job, trace: Trace) -> Fit:
    """The fit itself, which may take long. Raises Stopped."""

    def step(what: str) -> None:
        job.label = f"fitting {what}"
        if job.stop.is_set():
            raise Stopped("stopped before the fit was finished")

    with opened() as store:
        evidence = load_evidence(store, trace)
    found = fit_to(evidence, trace, step=step)
    while len(_FITS) >= _MOST_FITS:
        _FITS.pop(next(iter(_FITS)), None)
    _FITS[_key(trace)] = found
    return found


@st.cache_resource(show_spinner=False, max_entries=8)
def _prefixes(key: str, _trace: Trace) -> tuple[Prefix, ...]:
    with opened() as store:
        return hot_prefixes(store, _trace)
