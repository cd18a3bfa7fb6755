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
        cached = "Input tokens that the engine found in its cache."
        for name, words, count in (
            ("requests", "Requests read from the recording.", watch.requests),
            ("input_tokens", "Input tokens of these requests.", watch.input_tokens),
            ("cached_tokens", cached, watch.cached_tokens),
            ("bad_lines", "Lines that are no requests.", watch.bad_lines),
            ("restarts", "New recordings: the window began again.", watch.restarts),
        ):
            if count is not None:
                yield CounterMetricFamily(f"kvscope_{name}", words, value=count)
        failed = "Whether the latest window could not be replayed."
        yield _gauge("window_failed", failed, float(watch.failure is not None))
        if hits is None:
            return
        when = "When the window was replayed last, in seconds since 1970."
        drift = "Relative change of the recommendation's hit ratio from the expected one."
        again = "Whether the drift exceeds its limit: run kvscope tune again."
        for name, words, value in (
            ("window_requests", "Requests in the window.", hits.requests),
            ("window_seconds", "Time that the window spans.", hits.span_s),
            ("window_replay_seconds", "Time that the latest replay took.", hits.duration_s),
            ("window_timestamp_seconds", when, hits.computed_at_s),
            ("capacity_blocks", "Capacity x1.", hits.capacity_blocks),
            ("ideal_hit_ratio", "Hit ratio of an infinite cache.", hits.ideal),
            ("observed_hit_ratio", "Hit ratio that the engine reported.", hits.observed),
            ("recommended_hit_ratio", "Hit ratio of the recommendation.", hits.recommended),
            ("drift_ratio", drift, hits.drift),
            ("tune_again", again, None if hits.drift is None else float(hits.tune_again)),
        ):
            if value is not None:
                yield _gauge(name, words, value)
        lru = GaugeMetricFamily(
            "kvscope_lru_hit_ratio",
            "Hit ratio of LRU at multiples of the capacity, in idle cached blocks.",
            labels=["capacity"],
        )
        for factor, ratio in hits.lru.items():
            lru.add_metric([f"x{factor}"], ratio)
        yield lru


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(f"kvscope_{name}", words, value=value)
