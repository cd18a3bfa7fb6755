"""A deployment in a document, which shows itself."""

from __future__ import annotations

from typing import TypeAlias

from kvscope.deployment.deployment import ResolvedDeployment

DeploymentFacts: TypeAlias = ResolvedDeployment


def deployment_facts(deployment: ResolvedDeployment) -> ResolvedDeployment:
    """Return the deployment."""
    return deployment
