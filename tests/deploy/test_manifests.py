"""deploy/kubernetes.yaml: what it names exists in kvscope, and its parts fit together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvscope.core.files import data_folder
from tests.deploy.container import DOCKERFILE, steps

MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes.yaml"


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    """Return the manifests by their kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFESTS.read_text())}


def test_alerts_are_of_metrics_that_watch_serves(parts: dict[str, Any]) -> None:
    """Another name would never fire; those of the Grafana dashboard are tested on Prometheus."""
    board = (data_folder("grafana") / "kvscope-watch.json").read_text(encoding="utf-8")
    rules = parts["PrometheusRule"]["spec"]["groups"][0]["rules"]
    named = {name for rule in rules for name in re.findall(r"kvscope_\w+", rule["expr"])}
    assert named
    assert named <= set(re.findall(r"kvscope_\w+", board))


def test_containers_share_the_recording_and_its_owner(parts: dict[str, Any]) -> None:
    """`watch` reads the folder that the engine records to, as the same user."""
    pod = parts["Deployment"]["spec"]["template"]["spec"]
    engine, watch = pod["containers"]
    recorded = next(each["value"] for each in engine["env"] if each["name"] == "KVSCOPE_RECORD")
    assert watch["args"][:2] == ["watch", recorded]
    mounted = [
        {each["name"]: each["mountPath"] for each in one["volumeMounts"]} for one in (engine, watch)
    ]
    assert mounted[0] == mounted[1]
    assert {each["name"] for each in pod["volumes"]} == set(mounted[0])
    assert "runAsUser" in pod["securityContext"]
    assert not any("securityContext" in each for each in pod["containers"])


def test_prometheus_finds_watch(parts: dict[str, Any]) -> None:
    """Port, labels and token are those of the service, the container and the secret."""
    monitor, service = parts["ServiceMonitor"]["spec"], parts["Service"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["endpoints"]
    (port,) = (each for each in service["spec"]["ports"] if each["name"] == endpoint["port"])
    watch = parts["Deployment"]["spec"]["template"]["spec"]["containers"][1]
    assert {"name": port["targetPort"], "containerPort": port["port"]} in watch["ports"]
    secret = endpoint["authorization"]["credentials"]
    assert parts["Secret"]["metadata"]["name"] == secret["name"]
    assert secret["key"] in parts["Secret"]["stringData"]


def test_the_image_does_not_run_as_root() -> None:
    """Its steps are single lines, and the last user is not root."""
    words = steps(DOCKERFILE.read_text(encoding="utf-8"))
    assert [rest for word, rest in words if word == "USER"][-1] == "kvscope"
    assert ("ENTRYPOINT", '["kvscope"]') in words


def test_manifests_are_as_kubernetes_has_them() -> None:
    """By the schemas of the newest version; those of the operator's kinds are not among them."""
    kubernetes = pytest.importorskip("kubernetes_validate", reason="make test-container")
    for each in yaml.safe_load_all(MANIFESTS.read_text()):
        if not each["apiVersion"].startswith("monitoring.coreos.com"):
            kubernetes.validate(each, kubernetes.latest_version(), strict=True)
