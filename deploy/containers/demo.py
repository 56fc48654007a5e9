"""The demo's story, played in containers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from coordinator.core.errors import BadRequest
from deploy.containers.cluster import Cluster
from deploy.containers.engine import engine
from deploy.containers.images import build_images
from deploy.containers.stage import ContainerStage, variables
from lab.demo.options import JOB, DemoOptions
from lab.demo.report import DemoReport
from lab.demo.run import interruptible
from lab.demo.story import Say, Story


def play_in_containers(options: DemoOptions, say: Say, tell: Callable[[DemoReport], None]) -> None:
    """Play the demo in a cluster of its own and `tell` what was measured; blocks for minutes.

    Raises SetupError where there is no engine and none can be started, AllstopError when the story
    went wrong. Containers, network and volumes are removed, also on Ctrl-C and SIGTERM; images and
    the build's cache stay for the next time.
    """
    if (options.nodes, options.spares) != (2, 1):
        raise BadRequest("compose.yaml has two busy nodes and a spare one")
    with interruptible() as interruption, engine() as reach:
        build_images(reach, say)
        with cluster_of_its_own({**reach, **variables(options)}) as (cluster, directory):
            stage = ContainerStage(options, cluster, directory)
            story = Story(options, stage, say)
            say("docker compose up")
            story.start()
            played = asyncio.run(interruption.obeyed_by(story.play()))
            say("the same command again, undisturbed and without allstop, to compare")
            tell(story.report(played, stage.undisturbed()))
            if options.keep:
                keep(stage, reach, say)


@contextlib.contextmanager
def cluster_of_its_own(env: Mapping[str, str]) -> Iterator[tuple[Cluster, Path]]:
    """A project that nobody else has, and a private directory; both are gone afterwards."""
    cluster = Cluster(f"allstop-{os.getpid()}", env)
    with tempfile.TemporaryDirectory(prefix="allstop-compose-") as directory:
        try:
            yield cluster, Path(directory)
        finally:
            cluster.down()


def keep(stage: ContainerStage, reach: Mapping[str, str], say: Say) -> None:
    """Leave the cluster up to explore until Ctrl-C."""
    say("the cluster stays up; in another terminal:")
    for name in ("DOCKER_HOST", "DOCKER_CONFIG"):
        if name in reach:
            say(f"  export {name}={reach[name]}")
    say(f"  export ALLSTOP_COORDINATOR={','.join(stage.coordinators)}")
    say(f"  export ALLSTOP_TLS_CA={stage.tls.ca}")
    say(f"  export ALLSTOP_TLS_CERT={stage.tls.certificate} ALLSTOP_TLS_KEY={stage.tls.key}")
    for verb in ("jobs", "nodes", f"snapshots {JOB}"):
        say(f"  .venv/bin/allstop {verb}")
    say(f"  docker exec -it {stage.cluster.name(stage.options.spare[0])} bash")
    say("Ctrl-C ends it")
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
