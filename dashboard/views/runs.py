"""Runs and jobs: what runs here and how it ended, and what the store keeps, to be opened again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import streamlit as st

from dashboard import background_cache, data, job, query_params, render, sidebar
from dashboard.markdown import escape
from dashboard.wording import local_time
from kvscope.app.simulate import Simulation
from kvscope.core import units
from kvscope.report import policies
from kvscope.report.section import Section, tabulate
from kvscope.report.stored import StoredReport
from kvscope.report.words import NONE, count, ms_in_words, share

_EVERY_S = 1.0


def page() -> None:
    """Draw the jobs, then the stored reports and runs with what is opened of them."""
    opened: job.Job | None = st.session_state.pop("job to open", None)
    if opened is not None:
        if opened.key:
            job.attach(opened)
        query_params.open_page(opened.page, opened.address)
    st.title("Runs and jobs")
    st.header("Jobs of this dashboard")
    _jobs()
    stored = data.stored_results()
    if stored.busy:
        st.caption(escape(f"As last read: {stored.busy}"))
    _reports(stored.reports)
    _runs(stored.runs)
    _redraw_on_change(stored.stamp)


@st.fragment(run_every=_EVERY_S)
def _jobs() -> None:
    """Draw every job with its state; it can be stopped or opened."""
    known = sorted(
        [*job.all_jobs(), *background_cache.analyses()], key=lambda each: -each.started_at
    )
    if not known:
        st.caption("None yet: the pages start them.")
    for each in known:
        _job(each)


def _job(each: job.Job) -> None:
    name = f"{each.title}: {each.trace}" if each.trace else each.title
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        words, key = f"**{escape(name)}**  \n{escape(_state(each))}", str(each.started_at)
        if each.ended:
            st.markdown(words, width="stretch")
        else:
            st.progress(each.share, text=words)
            stopping = each.stop.is_set()
            if st.button("Stop", key=f"stop job {key}", disabled=stopping, help=f"Stop {name}"):
                each.stop.set()
                st.rerun(scope="fragment")
        if st.button("Open", key=f"open job {key}", help=f"Open {name}"):
            st.session_state["job to open"] = each
            st.rerun()  # a fragment alone cannot leave its page


def _state(each: job.Job) -> str:
    took = units.duration_in_words(round(each.duration_s, 1))
    if not each.ended:
        return f"running for {took}: {each.progress}"
    if each.stopped:
        return f"stopped after {took}"
    if each.error:
        return f"failed after {took}: {each.error.splitlines()[0]}"
    return f"done in {took}, {local_time(datetime.fromtimestamp(each.started_at, UTC))}"


@st.fragment(run_every=2 * _EVERY_S)
def _redraw_on_change(stamp: object) -> None:
    """Draw the page anew once the store's file is another one than when it was read."""
    if data.store_stamp() != stamp:
        st.rerun()


def _reports(reports: Sequence[StoredReport]) -> None:
    columns = {
        "trace": lambda each: each.trace,
        "command": lambda each: each.command.removeprefix("kvscope "),
        "answer": lambda each: each.summary,
        "when": lambda each: local_time(each.created_at),
        "took": lambda each: units.duration_in_words(each.duration_s),
    }
    table = tabulate("", reports, columns, words=("command", "answer", "when"))
    nothing = "`kvscope tune` and `kvscope fleet` add theirs, as Recommendation and Fleets do."
    render.show([Section.of("Reports", table if reports else nothing)])
    by_id = {each.report_id: each for each in reports}
    report_id = _select("report", "Open a report", list(by_id), lambda each: _called(by_id[each]))
    if report_id is None:
        return
    content = data.open_report(report_id)
    if content.file:
        render.download(content.file)
    render.show(content.sections, within=f"report {report_id}")


def _runs(runs: data.Runs) -> None:
    """Draw the runs over all traces, and the one that is opened."""
    columns: dict[str, Callable[[Any], str]] = {
        "run": lambda each: data.run_name(each[1][1]),
        "trace": lambda each: each[1][0].name,
        "blocks": lambda each: count(each[1][1].capacity_blocks),
        "hit rate": lambda each: share(each[1][1].outcome.token_hit_rate),
        "p95": lambda each: ms_in_words(each[1][1].outcome.ttft_ms.p95),
        "SLO": lambda each: _slo(each[1][1].setting.slo_s),
        "over SLO": lambda each: _over_slo(each[1][1].outcome.violations),
        "when": lambda each: local_time(each[1][1].created_at),
    }
    table = tabulate("", runs.items(), columns, words=("trace", "when"))
    nothing = "`kvscope simulate` adds some, as the pages Policy lab and Capacity do."
    render.show([Section.of("Stored runs", table if runs else nothing)])
    if len(runs) > 1:
        st.page_link("views/compare.py", label="Compare two of them")
    run_id = _select("run", "Open a run", list(runs), lambda each: data.run_in_words(*runs[each]))
    if run_id is not None:
        trace, run = data.run_with_parts(*runs[run_id], run_id)
        simulation = Simulation(trace, sidebar.choices().model, run.setting, (run,))
        render.show(policies.sections(simulation), within=f"run {run_id}")


def _slo(seconds: float | None) -> str:
    return NONE if seconds is None else units.duration_in_words(seconds)


def _over_slo(violations: int | None) -> str:
    return NONE if violations is None else count(violations)


def _select(key: str, label: str, ids: list[int], name: Callable[[int], str]) -> int | None:
    """Draw a choice of one of `ids`, by default none, and return it."""
    if not ids:
        if linked := st.query_params.get(key):
            st.warning(f"The store has no {key} {escape(linked)}: it was removed or made again.")
        return None
    with query_params.synced(key, None, int, allowed=[None, *ids]):
        selected: int | None = st.selectbox(
            label, ids, index=None, key=key, format_func=name, placeholder="none"
        )
    return selected


def _called(report: StoredReport) -> str:
    command = report.command.removeprefix("kvscope ")
    when = local_time(report.created_at)
    return f"{report.report_id}: {command} {report.trace}, {when}"


page()
