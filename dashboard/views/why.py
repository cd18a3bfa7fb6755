"""Why: the causes of missed tokens, what to change, and one request in the prefix tree."""

from __future__ import annotations

import streamlit as st

from dashboard import (
    answers,
    background_cache,
    connection,
    job,
    query_params,
    render,
    sidebar,
    work,
)
from dashboard.wording import escape, in_page_words
from kvscope.core.errors import KvscopeError
from kvscope.replay.findings import explained_request
from kvscope.report import misses as report
from kvscope.report.section import Section
from kvscope.report.words import count
from kvscope.usecases.explain import (
    USE_CASE,
    ExplainOptions,
    Explanation,
    explain_request,
    request_number,
)


def page() -> None:
    """Draw which cache is explained, the causes and findings, then the request that is picked."""
    trace = sidebar.page_head("Why")
    selected = sidebar.choices()
    where, blocks = selected.deployment, None
    if where is None:
        blocks = sidebar.capacity("why_capacity", "Capacity")
        blocks = blocks or selected.present_blocks
        if blocks is None:
            curve = background_cache.lru(trace).curve
            blocks = curve.capacity_for(curve.ideal / 2)
    by = sidebar.option(
        ExplainOptions, "by", "Who evicts whom, by", key="groups", usual="not asked"
    )
    options = ExplainOptions(capacity_blocks=blocks, by=by, **sidebar.of_deployment(ExplainOptions))
    question = ("explain", trace, explain_request(options))
    clicked = st.button("Explain", type="primary", key="explain_misses")
    first = job.current("why", question) is None
    done = job.answer(
        "why", "Explain misses", work.result, question, "Explain", clicked=clicked or first
    )
    if done is not None:
        answers.export(USE_CASE, [trace.name], options, done.result)
        prompts, (summary, *_) = background_cache.lru(trace).prompts, report.sections(done.result)
        render.show([summary], within="why")
        table, categories = report.by_category(done.result, prompts)
        render.show([Section.of(table.title, "A click on a row shows its requests below.")])
        row = render.clickable(table, "categories")
        explanation = done.result
        if row is not None:
            explanation = report.of_category(explanation, prompts, categories[row])
        render.show(report.sections(explanation)[1:], within="why")
        _request(explanation)


def _request(explanation: Explanation) -> None:
    """Draw the choice of a request, by default the one that lost most, and why it missed."""
    lost = {str(each.request): each for each in explanation.requests}
    default = next(iter(lost), "0")
    with query_params.synced("request", default):
        text = st.selectbox(
            "Request (or another number or id)",
            list(dict.fromkeys([*lost, st.session_state["request"]])),
            key="request",
            accept_new_options=True,
            format_func=lambda each: (
                f"{each}: {count(lost[each].missed_tokens)} tokens missed" if each in lost else each
            ),
            help="Those that lost the most tokens avoidably; type any other.",
        )
    try:
        with connection.reading() as store:
            number = request_number(store, explanation.trace, text or default)
    except KvscopeError as error:
        st.error(escape(in_page_words(str(error))))
        return
    request = explained_request(
        background_cache.lru(explanation.trace).prompts,
        explanation.definition,
        explanation.attribution,
        number,
        explanation.gaps,
        explanation.broken,
    )
    render.show([report.request_section(explanation, request)], within=f"request {number}")


page()
