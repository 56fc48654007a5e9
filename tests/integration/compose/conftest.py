"""The cluster of `deploy/compose`, started by testcontainers, for the tests of this directory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from testcontainers.compose import DockerCompose

from coordinator.core.model import Snapshot
from deploy.containers.cluster import Cluster
from deploy.containers.engine import engine
from deploy.containers.images import COMPOSE, build_images
from deploy.containers.stage import ContainerStage, variables
from lab.demo.options import DemoOptions
from lab.demo.story import Story

# small, and long enough to be caught in the middle
OPTIONS = DemoOptions(ranks_per_node=1, loader_workers=0, epochs=16, checkpoint_at=10, train_on=15)


@dataclass
class Playing:
    """A cluster that is up, and how far the story has come."""

    compose: DockerCompose
    story: Story
    stage: ContainerStage
    said: list[str] = field(default_factory=list)
    action: str = ""
    snapshot: Snapshot | None = None

    @property
    def cluster(self) -> Cluster:
        return self.stage.cluster


@pytest.fixture(scope="module")
def reach() -> Iterator[Mapping[str, str]]:
    """An engine, and all images."""
    with engine() as env:
        build_images(env, print)
        yield env


@pytest.fixture(scope="module")
def playing(
    reach: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Playing]:
    project = f"allstop-test-{os.getpid()}"
    env = {**reach, **variables(OPTIONS), "COMPOSE_PROJECT_NAME": project}
    directory: Path = tmp_path_factory.mktemp("operator")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)  # testcontainers hands on the environment
        cluster = Cluster(project, env)
        compose = DockerCompose(COMPOSE, wait=True)
        stage = ContainerStage(OPTIONS, cluster, directory)
        try:
            compose.start()
            stage.tls = cluster.operator(directory)
            stage.coordinators = cluster.coordinators
            said: list[str] = []
            yield Playing(compose, Story(OPTIONS, stage, said.append), stage, said)
        finally:
            cluster.down()
