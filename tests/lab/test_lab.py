"""The lab is a set of real machines for every purpose of ours, and leaves nothing behind."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import lab as lab_module
from lab import DISK, CommandFailed, HostGone, Lab, LabError, LabUnavailable

pytestmark = pytest.mark.root
MakeLab = Callable[..., Lab]
PATIENCE_S = 15.0

SERVE = """
import socket
s = socket.create_server(("", 7000))
print("listening", flush=True)
c = s.accept()[0]
while data := c.recv(100):
    c.sendall(data.upper())
print("eof", flush=True)
"""
TALK = """
import socket, sys
c = socket.create_connection((sys.argv[1], 7000), timeout=10)
for line in sys.stdin:
    c.sendall(line.encode())
    print(c.recv(100).decode().strip(), flush=True)
"""
OWNER = """
import sys, time
from pathlib import Path
from lab import Lab
lab = Lab(Path(sys.argv[1]), ["n0", "n1"])
lab.start()
for host in [lab.control, *lab.hosts.values()]:
    host.popen(["sh", "-c", "sleep 600 & exec setsid sleep 600"])
print(*[host.init_pid for host in [lab.control, *lab.hosts.values()]], flush=True)
time.sleep(600)
"""


def eventually(what: Callable[[], bool]) -> bool:
    """Whether `what` holds within PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(0.05)
    return what()


def links() -> list[str]:
    """Names of the network devices outside any lab."""
    return sorted(os.listdir("/sys/class/net"))


def namespaces(pid: int) -> set[str]:
    """The namespaces of a process that are not ours."""
    kinds = ("net", "pid", "mnt", "uts", "ipc")
    return {os.readlink(f"/proc/{pid}/ns/{kind}") for kind in kinds} - {
        os.readlink(f"/proc/self/ns/{kind}") for kind in kinds
    }


def used_namespaces() -> set[str]:
    """Every namespace that any process is in."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/*"):
        try:
            found.add(os.readlink(link))
        except OSError:
            continue
    return found


def test_hosts_talk_by_name(make_lab: MakeLab) -> None:
    lab = make_lab(["n0", "n1"])
    assert [h.address for h in lab.hosts.values()] == ["10.77.0.11", "10.77.0.12"]
    server = lab.hosts["n0"].popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "listening\n"
    done = lab.hosts["n1"].run([sys.executable, "-c", TALK, "n0"], stdin="hello\n")
    assert done.stdout == "HELLO\n"
    assert server.wait(5) == 0
    server.stdout.close()
    assert lab.control.run(["hostname"]).stdout == "control\n"
    assert lab.hosts["n1"].run(["hostname"]).stdout == "n1\n"


def test_host_is_a_machine_of_its_own(make_lab: MakeLab) -> None:
    lab = make_lab(["n0", "n1"])
    n0, n1 = lab.hosts.values()
    n0.run(["sh", "-c", f"touch /run/mine /dev/shm/mine {DISK}/mine"])
    assert n1.run(["ls", "/run", "/dev/shm", str(DISK)]).stdout.count("mine") == 0
    assert (n0.disk / "mine").exists()
    assert not Path("/run/mine").exists()
    assert not DISK.exists()
    pids = [p for p in n0.run(["ls", "/proc"]).stdout.split() if p.isdigit()]
    assert set(pids) < {"1", *map(str, range(2, 100))}
    assert len(pids) == 2  # PID 1 and ls


def test_environment_directory_status_and_signals_pass(make_lab: MakeLab, tmp_path: Path) -> None:
    n0 = make_lab(["n0"]).hosts["n0"]
    done = n0.run(["sh", "-c", "echo $WORD; pwd"], env={**os.environ, "WORD": "x"}, cwd=tmp_path)
    assert done.stdout == f"x\n{tmp_path}\n"
    assert n0.run(["sh", "-c", "exit 7"], check=False).returncode == 7
    with pytest.raises(CommandFailed, match=r"n0: .* gave 7: why"):
        n0.run(["sh", "-c", "echo why; exit 7"])
    with pytest.raises(CommandFailed, match="nowhere: No such file"):
        n0.run(["nowhere"])
    with pytest.raises(CommandFailed, match=r"took over 0\.5 s"):
        n0.run(["sleep", "60"], 0.5)
    sleeper = n0.popen(["sleep", "60"])
    assert eventually(lambda: "sleep" in n0.run(["ps", "-A"]).stdout)
    sleeper.terminate()
    assert sleeper.wait(5) == -signal.SIGTERM
    sleeper = n0.popen(["sleep", "60"])
    comm = Path(f"/proc/{n0.pid_of(sleeper)}/comm")
    assert eventually(lambda: comm.read_text() == "sleep\n")
    sleeper.kill()
    sleeper.wait(5)
    assert eventually(lambda: "sleep" not in n0.run(["ps", "-A"]).stdout)
    with pytest.raises(LabError, match="has ended"):
        n0.pid_of(sleeper)


def test_orphans_are_reaped(make_lab: MakeLab) -> None:
    n0 = make_lab(["n0"]).hosts["n0"]
    n0.run(["sh", "-c", "(sleep 0.1 &) ; (setsid sleep 0.1 &)"])
    assert eventually(lambda: "sleep" not in n0.run(["ps", "-A"]).stdout)
    assert "defunct" not in n0.run(["ps", "-A"]).stdout


def test_power_off_takes_everything_at_once(make_lab: MakeLab) -> None:
    lab = make_lab(["n0", "n1"])
    n0, n1 = lab.hosts.values()
    server = n0.popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "listening\n"
    n0.run(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 &"])
    mine = namespaces(n0.init_pid)
    assert len(mine) == 5
    n0.power_off()
    assert not n0.alive
    assert server.wait(5) == -signal.SIGKILL
    server.stdout.close()
    assert not mine & used_namespaces()
    assert "v0" not in lab.control.run(["ip", "link"]).stdout
    with pytest.raises(HostGone, match="n0 is powered off"):
        n0.run(["true"])
    n0.power_off()
    assert n1.alive
    assert n1.run(["hostname"]).stdout == "n1\n"


def test_cut_off_loses_packets_and_breaks_no_connection(make_lab: MakeLab) -> None:
    lab = make_lab(["n0", "n1"])
    n0, n1 = lab.hosts.values()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    server = n0.popen([sys.executable, "-c", SERVE], **pipes)
    assert server.stdout.readline() == "listening\n"
    client = n1.popen([sys.executable, "-c", TALK, "n0"], **pipes)

    def say(word: str) -> None:
        client.stdin.write(word + "\n")
        client.stdin.flush()

    say("before")
    assert client.stdout.readline() == "BEFORE\n"
    n0.cut_off()
    say("during")
    assert select.select([client.stdout], [], [], 0.5)[0] == []
    n0.reconnect()
    assert client.stdout.readline() == "DURING\n"
    for stream in (client.stdin, client.stdout, server.stdin, server.stdout):
        stream.close()


def test_pause_stops_what_ran_and_unpause_only_that(make_lab: MakeLab) -> None:
    n0 = make_lab(["n0"]).hosts["n0"]
    n0.popen(["sh", "-c", "while :; do date +%N >> /run/ticks; sleep 0.02; done"])
    n0.popen(["sh", "-c", "kill -STOP $$; touch /run/continued"])

    def ticks() -> int:
        return int(n0.run(["sh", "-c", "cat /run/ticks | wc -l"], check=False).stdout or 0)

    assert eventually(lambda: ticks() > 2 and " T" in n0.run(["ps", "-Ao", "pid,stat"]).stdout)
    n0.pause()
    before = ticks()
    time.sleep(0.3)
    assert ticks() == before
    n0.unpause()
    assert eventually(lambda: ticks() > before)
    assert n0.run(["ls", "/run"]).stdout.split() == ["allstop-disk", "ticks"]


def test_add_host_new_and_again(make_lab: MakeLab) -> None:
    lab = make_lab(["n0", "n1"])
    added = lab.add_host("n2")
    assert added.address == "10.77.0.13"
    assert lab.hosts["n0"].run(["getent", "hosts", "n2"]).stdout.split() == ["10.77.0.13", "n2"]
    with pytest.raises(LabError, match="has a host named n2"):
        lab.add_host("n2")
    lab.hosts["n0"].run(["touch", f"{DISK}/kept"])
    lab.hosts["n0"].power_off()
    again = lab.add_host("n0")
    assert again.address == "10.77.0.11"
    assert again.run(["ls", str(DISK)]).stdout == "kept\n"


def test_two_labs_do_not_collide(make_lab: MakeLab) -> None:
    one, other = make_lab(["n0"]), make_lab(["n0"])
    one.hosts["n0"].power_off()
    assert other.hosts["n0"].run(["hostname"]).stdout == "n0\n"


def test_control_host_cannot_be_pulled(make_lab: MakeLab) -> None:
    with pytest.raises(LabError, match="cannot be powered off"):
        make_lab(["n0"]).control.power_off()


def test_close_leaves_nothing(tmp_path: Path) -> None:
    outside = links()
    with Lab(tmp_path, ["n0"]) as lab:
        inits = [lab.control.init_pid, lab.hosts["n0"].init_pid]
        theirs = namespaces(inits[0]) | namespaces(inits[1])
        assert len(theirs) == 10
        assert links() == outside
    assert not any(Path(f"/proc/{pid}").exists() for pid in inits)
    assert not theirs & used_namespaces()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    lab.close()


def test_killed_owner_leaves_nothing(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    inits = [int(pid) for pid in owner.stdout.readline().split()]
    owner.stdout.close()
    theirs = set().union(*(namespaces(pid) for pid in inits))
    assert len(theirs) == 15
    owner.kill()
    owner.wait(5)
    assert eventually(lambda: not theirs & used_namespaces())
    assert not any(Path(f"/proc/{pid}").exists() for pid in inits)


def test_failed_start_takes_down_what_was_made(tmp_path: Path) -> None:
    lab = Lab(tmp_path, ["n0", "n0"])
    with pytest.raises(LabError, match="has a host named n0"):
        lab.start()
    assert not lab.control.alive


def test_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_module.cluster.os, "geteuid", lambda: 1000)
    with pytest.raises(LabUnavailable, match="needs root"):
        Lab(tmp_path, ["n0"]).start()
    monkeypatch.undo()
    with pytest.raises(LabUnavailable, match="mount /nowhere: No such file"):
        Lab(tmp_path, ["n0"], private=["/nowhere"]).start()
