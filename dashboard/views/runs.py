"""Runs and jobs: what runs here and how it ended, and what the store keeps, to be opened again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import streamlit as st

from dashboard import answers, background_cache, data, job, query_params, render, sidebar
from dashboard.connection import database
from dashboard.wording import escape, local_time
from kvscope.app.simulate import Simulation
from kvscope.core import units
from kvscope.core.runs import Run
from kvscope.report import policies
from kvscope.report.runs import run_name
from kvscope.report.section import Section, Table, tabulate
from kvscope.report.stored import StoredReport
from kvscope.report.words import NONE, count, ms_in_words, share
from kvscope.usecases.simulate import USE_CASE

ANY = "all"
SIMULATE = "simulate"
AGES = {
    ANY: timedelta(days=36_500),
    "last day": timedelta(days=1),
    "last week": timedelta(days=7),
}
IsShown = Callable[[str, str, datetime | None], bool]
_EVERY_S = 1.0


def page() -> None:
    """Draw the jobs, then the stored reports and runs with what is opened of them."""
    opened: job.Job | None = st.session_state.pop("job to open", None)
    if opened is not None:
        if opened.key:
            job.attach(opened)
        query_params.open_page(opened.page, opened.address)
    sidebar.draw_title("Runs and jobs")
    st.header("Jobs of this dashboard")
    _jobs()
    stored = data.stored_results()
    if stored.busy:
        st.caption(escape(f"As last read: {stored.busy}"))
    is_shown = _filters(stored)
    saved = _reports(stored.reports, is_shown) | _runs(stored.runs, is_shown)
    trace = sidebar.choices().trace
    words = ["runs", "list", *([trace.name] if trace else []), "--db", database()]
    answers.draw_exports(words, saved)
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
            st.button(
                "Stop",
                key=f"stop job {key}",
                on_click=each.stop.set,
                disabled=each.stop.is_set(),
                help=f"Stop {name}",
            )
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
        job.redraw()


def _filters(stored: data.StoredResults) -> IsShown:
    """Draw the choice of trace, command and age; return whether a row is among what is chosen."""
    names = [each.trace for each in stored.reports]
    names += [trace.name for trace, _ in stored.runs.values()]
    commands = [*(_command(each.command) for each in stored.reports), SIMULATE]
    first, second, third = st.columns(3)
    with first:
        trace = sidebar.choice("of", "Of trace", list(dict.fromkeys([ANY, *names])), ANY)
    with second:
        command = sidebar.choice("by", "By command", list(dict.fromkeys([ANY, *commands])), ANY)
    with third:
        oldest = datetime.now(UTC) - AGES[sidebar.choice("age", "Age", list(AGES), ANY)]

    def is_shown(of: str, by: str, when: datetime | None) -> bool:
        of_it = trace in {ANY, of} and command in {ANY, by}
        return of_it and (when is None or when.replace(tzinfo=UTC) >= oldest)

    return is_shown


def _command(title: str) -> str:
    return title.removeprefix("kvscope ")


def _reports(stored: Sequence[StoredReport], is_shown: IsShown) -> answers.Files:
    """Draw the reports and what is opened of them; return its files."""
    reports = [
        each for each in stored if is_shown(each.trace, _command(each.command), each.created_at)
    ]
    columns = {
        "trace": lambda each: each.trace,
        "command": lambda each: _command(each.command),
        "answer": lambda each: each.summary,
        "when": lambda each: local_time(each.created_at),
        "took": lambda each: units.duration_in_words(each.duration_s),
    }
    table = tabulate("", reports, columns, words=("command", "answer", "when"))
    nothing = "`kvscope tune` and `kvscope fleet` add theirs, as Recommendation and Fleets do."
    report_id = _pick("report", "Reports", table, [each.report_id for each in reports], nothing)
    if report_id is None:
        return {}
    content = data.open_report(report_id)
    if content.file:
        render.download(content.file)
    render.show(content.sections, within=f"report {report_id}")
    stored_as = next(each for each in reports if each.report_id == report_id)
    of = {trace.name: trace for trace in data.all_traces()}[stored_as.trace]
    return answers.stored_files(stored_as.command, of, content)


def _runs(runs: data.Runs, is_shown: IsShown) -> answers.Files:
    """Draw the runs, those that differ in parameters as one; return the files of an opened one."""
    sweeps: dict[Any, list[int]] = {}
    for number, (trace, run) in runs.items():
        if is_shown(trace.name, SIMULATE, run.created_at):
            sweeps.setdefault((trace.name, data.alike(run)), []).append(number)
    rows = []
    for numbers in sweeps.values():
        rows += [numbers] if len(numbers) >= data.SWEEP else [[number] for number in numbers]
    rows.sort(key=lambda numbers: -numbers[0])

    def of(value: Callable[[Run], str]) -> Callable[[list[int]], str]:
        """Return the cell of a run, or the ends of what a sweep gives."""

        def cell(numbers: list[int]) -> str:
            cells = list(dict.fromkeys(value(runs[number][1]) for number in numbers))
            return cells[0] if len(cells) == 1 else f"{len(cells)} values"

        return cell

    def name(numbers: list[int]) -> str:
        run = runs[numbers[0]][1]
        return run_name(run) if len(numbers) == 1 else f"{run.policy}, {len(numbers)} runs"

    columns: dict[str, Callable[[Any], str]] = {
        "run": name,
        "trace": lambda numbers: runs[numbers[0]][0].name,
        "blocks": of(lambda run: count(run.capacity_blocks)),
        "hit rate": of(lambda run: share(run.outcome.token_hit_rate)),
        "p95": of(lambda run: ms_in_words(run.outcome.ttft_ms.p95)),
        "SLO": of(lambda run: _slo(run.setting.slo_s)),
        "over SLO": of(lambda run: count(run.outcome.violations)),
        "when": of(lambda run: local_time(run.created_at) if run.created_at else NONE),
    }
    table = tabulate("", rows, columns, words=("trace", "when"))
    nothing = "`kvscope simulate` adds some, as the pages Policy lab and Capacity do."
    opened = _pick("run", "Stored runs", table, [numbers[0] for numbers in rows], nothing)
    if len(runs) > 1:
        st.page_link("views/compare.py", label="Compare two of them")
    for numbers in rows:
        if opened in numbers:
            known = tuple(data.run_with_parts(*runs[each], each)[1] for each in numbers)
            trace, setting = runs[numbers[0]][0], known[0].setting
            simulation = Simulation(trace, sidebar.choices().model, setting, known)
            render.show(policies.sections(simulation), within=f"run {opened}")
            return answers.files(USE_CASE.report(simulation))
    return {}


def _pick(kind: str, title: str, table: Table, ids: list[int], nothing: str) -> int | None:
    """Draw a table whose rows open at a click; return which is open, by default the address's."""
    render.show([Section.of(title, *([] if ids else [nothing]))])
    linked = st.query_params.get(kind)
    if not ids:
        if linked:
            st.warning(f"The store has no {kind} {escape(linked)}: it was removed or made again.")
        return None
    query_params.initialize(kind, None, int, allowed=[None, *ids])
    row = render.clickable(table, kind)
    if row is not None:
        st.session_state[kind] = ids[row]
    st.caption("A click on a row opens it below.")
    query_params.write(kind)
    opened: int | None = st.session_state[kind]
    return opened


def _slo(seconds: float | None) -> str:
    return NONE if seconds is None else units.duration_in_words(seconds)


page()
