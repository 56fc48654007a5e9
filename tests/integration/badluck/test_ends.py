"""Ends on purpose and starts in vain: nothing is left behind."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from lab.deployment import STAGING
from lab.host import Host
from tests.integration.badluck.conftest import Start
from tests.integration.badluck.kit import JOB, Pair, until

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]

END_S = 30.0
MISSING = """\
error: cannot start the worker: program no-such-program: No such file or directory
  where  job missing, worker 0, node n2
  next   install it on this node, or give its full path
  | argv: no-such-program -v
  | cwd: {cwd}
  | log: /run/allstop/missing/0/log
"""


def processes(host: Host) -> list[str]:
    """Command lines of a host, but for its PID 1 and the look itself."""
    look = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done 2>/dev/null"
    lines = host.run(["sh", "-c", look]).stdout.splitlines()
    return [
        line for line in lines if line and "inside.py" not in line and "/proc/[0-9]" not in line
    ]


async def test_a_missing_binary_is_said_and_leaves_nothing(pair: Pair) -> None:
    host, deployment = pair.host("n2"), pair.deployment
    deployment.options = ("--criu", str(pair.criu_of("n2")))
    deployment.start_worker(host, "missing", workers=1, worker=0, argv=["no-such-program", "-v"])
    shim = deployment.shims.pop("n2")
    assert shim.wait(END_S) == 10  # DriverError
    told = deployment.log("n2").read_text()
    assert told[told.index("error: ") :] == MISSING.format(cwd=Path.cwd())
    assert "Traceback" not in told
    assert processes(host) == []
    assert await pair.job("missing") is None
    await pair.went_on()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("held", [False, True], ids=["running", "held"])
async def test_a_signal_ends_everything(
    start_pair: Start, number: signal.Signals, held: bool
) -> None:
    pair = await start_pair()
    hosts = [pair.host("n0"), pair.host("n1"), pair.lab.control]
    if held:
        pair.tell_criu("n0", "slow", "5")
        attempt = pair.checkpoint()
        await attempt.reached("DUMPING")
        await until("that n1 is stopped", lambda: is_held(pair))
    pair.signal("n1", number)
    assert pair.deployment.shims["n1"].wait(END_S) == 128 + number
    if held:
        failure = await attempt.failed()
        assert (failure.where.node, failure.where.worker) == ("n1", 1), failure.to_fields()
        assert "n1 left" in failure.what
        await until("that n0 is free", lambda: is_free(pair, "n0"))
    for name in ("n0", "control"):
        process = pair.deployment.shims.get(name, pair.deployment.plane)
        assert process is not None
        if process.poll() is None:
            pair.signal(name, number)
        process.wait(END_S)
    for host in hosts:
        assert processes(host) == [], host
        assert "allstop" not in host.run(["nft", "list", "tables"]).stdout
    assert pair.deployment.plane is not None
    assert pair.deployment.plane.returncode == 0
    for host in hosts[:2]:
        assert host.run(["find", str(STAGING), "-name", "owner"]).stdout == ""
    assert not (pair.deployment.state / "allstop.sock").exists()
    assert list(pair.deployment.store.glob(f"{JOB}/*/*")) == []
    assert list((pair.deployment.store / "partial").iterdir()) == []


async def is_held(pair: Pair) -> bool:
    return bool(pair.stopped_on("n1"))


async def is_free(pair: Pair, node: str) -> bool:
    return pair.left_on(node) == []
