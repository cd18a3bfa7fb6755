"""Every panel of the Grafana dashboard has data in a real Prometheus that scrapes kvscope."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.client import SERVICE_UNAVAILABLE
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

pytest.importorskip("prometheus_client", reason="needs prometheus_client")

from kvscope.cli.watch import serving
from kvscope.core.addresses import Address
from kvscope.core.files import data_folder
from tests.cli.test_watch import ADVICE, free_port, recorded, watching

PROMETHEUS = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(
    PROMETHEUS is None, reason="no prometheus on the PATH (apt-get install prometheus)"
)
TOKEN = "a token of this test"  # noqa: S105
PATIENCE_S = 60.0
CONFIG = """
global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
scrape_configs:
  - job_name: kvscope
    authorization: {{credentials: "{token}"}}
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
GRAFANA = data_folder("grafana")
DASHBOARD = json.loads((GRAFANA / "kvscope-watch.json").read_text("utf-8"))
RULES = yaml.safe_load((GRAFANA / "kvscope-alerts.yaml").read_text("utf-8"))["groups"][0]["rules"]
EXPRESSIONS = {
    f"{panel['title']}, {target['refId']}": target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yield the port of a Prometheus that has scraped a watch which went on meanwhile."""
    folder = tmp_path_factory.mktemp("prometheus")
    port, own = free_port(), free_port()
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(token=TOKEN, port=port))
    watched = watching(recommendation=str(ADVICE))
    assert watched.hits is not None
    watched.hits = replace(watched.hits, rejected=2)  # an engine's alone
    command = [
        *(str(PROMETHEUS), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
        *(f"--web.listen-address=127.0.0.1:{own}", "--log.level=error"),
    ]
    with (
        serving(watched, Address("127.0.0.1", port, TOKEN)),
        subprocess.Popen(command, stderr=subprocess.DEVNULL) as process,
    ):
        try:
            until_s = time.monotonic() + PATIENCE_S
            number = 10
            while len(values(own, "kvscope_requests_total[5s]")) < 3:
                assert time.monotonic() < until_s
                assert process.poll() is None
                watched.add([recorded(number)])
                number += 1
                time.sleep(0.2)
            yield own
        finally:
            process.terminate()


def answered(port: int, expression: str) -> list[Any]:
    """Return the result of a query, nothing where Prometheus is not ready yet."""
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}") as answer:
            result: list[Any] = json.load(answer)["data"]["result"]
            return result
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != SERVICE_UNAVAILABLE:  # it is not ready yet
            raise
        return []
    except urllib.error.URLError:
        return []


def values(port: int, expression: str) -> list[Any]:
    """Return the samples of the first series of a query over time."""
    return next((series["values"] for series in answered(port, expression)), [])


def test_alerts_fire(prometheus: int) -> None:
    """The engine hits 32 % where the recommendation does 64 %, and other than it expects."""
    fired = {}
    for rule in RULES:
        value, holds = rule["data"]
        assert rule["condition"] == holds["refId"]
        assert holds["model"]["expression"] == value["refId"]
        (limit,) = holds["model"]["conditions"][0]["evaluator"]["params"]
        (series,) = answered(prometheus, value["model"]["expr"])
        fired[rule["uid"]] = float(series["value"][1]) > limit
    assert fired == {
        "kvscope-tune-again": True,
        "kvscope-hits-below-recommended": True,
        "kvscope-rejects": True,
    }


def test_every_panel_has_data(prometheus: int) -> None:
    """Grafana's variables are replaced as Grafana does, for all instances.

    The figures are those of the watch: LRU's for each capacity, and requests that still arrive.
    """
    without = {}
    for target, expression in EXPRESSIONS.items():
        asked = expression.replace("$__rate_interval", "5s").replace("$instance", ".*")
        assert "$" not in asked
        shown = [float(series["value"][1]) for series in answered(prometheus, asked)]
        if not shown or any(map(math.isnan, shown)):
            without[target] = asked, shown
    assert without == {}
    ratios = answered(prometheus, "kvscope_lru_hit_ratio")
    assert {each["metric"]["capacity"] for each in ratios} == {"x1", "x2", "x4"}
    assert {float(each["value"][1]) for each in ratios} == {32 / 50}
    (rate,) = answered(prometheus, "rate(kvscope_requests_total[5s])")
    assert float(rate["value"][1]) > 0
    # What fills the variable `instance`: a label of a metric that is always there.
    (variable,) = (each for each in DASHBOARD["templating"]["list"] if each["name"] == "instance")
    assert variable["query"]["query"] == "label_values(kvscope_requests_total, instance)"
    assert rate["metric"]["instance"].startswith("127.0.0.1:")
