"""What `kvscope watch` knows, as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvscope.app.watch import Watch


class WatchCollector:
    """The metrics of a watch at the moment they are scraped.

    Ratios are of the window's later half, from 0 to 1. A figure that is not known has no sample.
    """

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        watch, hits = self.watch, self.watch.hits
        yield _counter("requests", "Requests read from the recording.", watch.requests)
        yield _counter("input_tokens", "Input tokens of these requests.", watch.input_tokens)
        if watch.cached_tokens is not None:
            what = "Input tokens that the engine found in its cache."
            yield _counter("cached_tokens", what, watch.cached_tokens)
        yield _counter("bad_lines", "Lines that are no requests.", watch.bad_lines)
        yield _counter("restarts", "New recordings: the window began again.", watch.restarts)
        failed = "Whether the latest window could not be replayed."
        yield _gauge("window_failed", failed, float(watch.failure is not None))
        if hits is None:
            return
        yield _gauge("window_requests", "Requests in the window.", hits.requests)
        yield _gauge("window_seconds", "Time that the window spans.", hits.span_s)
        replay = "Time that the latest replay of the window took."
        yield _gauge("window_replay_seconds", replay, hits.duration_s)
        when = "When the window was replayed last, in seconds since 1970."
        yield _gauge("window_timestamp_seconds", when, hits.computed_at_s)
        yield _gauge("capacity_blocks", "Capacity x1.", hits.capacity_blocks)
        lru = GaugeMetricFamily(
            "kvscope_lru_hit_ratio",
            "Hit ratio of LRU at multiples of the capacity, in idle cached blocks.",
            labels=["capacity"],
        )
        for factor, ratio in hits.lru.items():
            lru.add_metric([f"x{factor}"], ratio)
        yield lru
        yield _gauge("ideal_hit_ratio", "Hit ratio of an infinite cache.", hits.ideal)
        for name, what, value in (
            ("observed_hit_ratio", "Hit ratio that the engine reported.", hits.observed),
            ("recommended_hit_ratio", "Hit ratio of the recommendation.", hits.recommended),
            (
                "drift_ratio",
                "Relative change of the recommendation's hit ratio from the expected one.",
                hits.drift,
            ),
        ):
            if value is not None:
                yield _gauge(name, what, value)
        if hits.drift is not None:
            again = "Whether the drift exceeds its limit: run kvscope tune again."
            yield _gauge("tune_again", again, float(hits.tune_again))


def _counter(name: str, words: str, value: float) -> Metric:
    return CounterMetricFamily(f"kvscope_{name}", words, value=value)


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(f"kvscope_{name}", words, value=value)
