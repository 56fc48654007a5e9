"""`python -m tests.screenshots`: the README's pictures and trace, of a real job in the demo's lab.

Writes docs/images/*.png and what stands between the README's two `trace` marks.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from coordinator.api.client import OperatorClient
from lab import Lab
from lab.demo.options import JOB, DemoOptions
from lab.demo.run import directory, interruptible, own_directories
from lab.demo.stage import LabStage
from lab.demo.story import START_TIMEOUT_S, Story
from lab.deployment import allstop
from tests.support.browser import Browser, browsing

ROOT = Path(__file__).resolve().parent.parent
IMAGES, README = ROOT / "docs" / "images", ROOT / "README.md"
PAGE = "http://127.0.0.1:7412"
SIZE, HEIGHT = (1060, 900), 694  # of the window, and what is kept of it
WAIT_S = 60.0
POLL_S = 0.02
TRACE = re.compile(r"(<!-- trace -->\n).*?(<!-- /trace -->)", re.S)


async def take(root: Path, lab: Lab) -> None:
    """The trace of a checkpoint that nobody looked at; then pictures, each in two themes."""
    options = DemoOptions(epochs=400)
    stage = LabStage(options, lab, root)
    story = Story(options, stage, say)
    story.start()
    coordinator = stage.deployment.socket
    async with OperatorClient([coordinator]) as client:
        await story.reach(client, 40, START_TIMEOUT_S)
        _, snapshot = await story.checkpoint(client)
        write_trace(coordinator, snapshot.snapshot)
        with tempfile.TemporaryDirectory(dir=root) as profile:
            async with browsing(lab.control, Path(profile)) as browser:
                await take_pictures(story, client, browser)


async def take_pictures(story: Story, client: OperatorClient, browser: Browser) -> None:
    """A checkpoint in the midst of it, and the plan after a node was lost."""
    await browser.open(f"{PAGE}/#/jobs/{JOB}")
    for dark in (False, True):
        await dumping(story, client, browser, dark=dark)
    await story.lose_a_node(client)
    await shown(browser, "table[aria-label=Plan] .badge.busy")
    for dark in (False, True):
        await browser.looks(SIZE, dark=dark)
        await browser.picture(image("plan", dark=dark), of=".panel:last-of-type")


async def dumping(story: Story, client: OperatorClient, browser: Browser, *, dark: bool) -> None:
    """Take a checkpoint, and a picture in the midst of it."""
    await browser.looks(SIZE, dark=dark)
    running = asyncio.create_task(story.checkpoint(client))
    await shown(browser, ".phase.now[data-phase=DUMPING] ~ .phase.after")
    await shown(browser, ".rank.parked")
    await browser.picture(image("checkpoint", dark=dark), height=HEIGHT)
    await running


async def shown(browser: Browser, selector: str) -> None:
    """Wait until the page has such an element."""
    deadline = time.monotonic() + WAIT_S
    while not await browser.script("return !!document.querySelector(arguments[0])", selector):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{selector} did not come within {WAIT_S:g} s")
        await asyncio.sleep(POLL_S)


def image(name: str, *, dark: bool) -> Path:
    return IMAGES / f"{name}{'-dark' if dark else ''}.png"


def write_trace(coordinator: str, snapshot: str) -> None:
    """Put what `allstop trace` prints of that snapshot into the README."""
    line = [*allstop("trace"), snapshot, "--coordinator", coordinator]
    told = subprocess.run(
        line,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
    ).stdout
    lines = "\n".join(each.rstrip() for each in told.splitlines() if each.strip())
    block = f"```\n$ allstop trace {snapshot}\n{lines}\n```\n"
    text, count = TRACE.subn(lambda found: f"{found[1]}{block}{found[2]}", README.read_text())
    assert count == 1, "README.md has no two marks for the trace"
    README.write_text(text)


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def main() -> int:
    """Exit code 0 when all pictures were taken; nothing else is left behind."""
    options = DemoOptions()
    with interruptible() as interruption, directory() as root:
        names = [*options.busy, *options.spare]
        with Lab(root / "lab", names, private=own_directories(root)) as lab:
            asyncio.run(interruption.obeyed_by(take(root, lab)))
    for path in sorted(IMAGES.glob("*.png")):
        say(f"{path.relative_to(ROOT)} {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
