"""Several hosts on one machine, made of anonymous namespaces.

    with Lab(tmp, ["n0", "n1", "n2"]) as lab:
        lab.hosts["n0"].popen(["torchrun", ...])
        lab.hosts["n0"].power_off()

The owner's first child holds the control host: a PID, network, mount, UTS and IPC namespace with
a bridge. Every other host is nested in it, joined by a veth pair. Each PID 1 watches its owner by
a pidfd, so nothing outlives the owner, not even one that was killed: no process, and with the last
process no namespace, bridge, veth or mount. Nothing has a name outside, so labs do not collide.
"""

import ipaddress
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.errors import LabError, LabUnavailable
from lab.host import DISK, INSIDE, Host
from lab.inside import Settings

START_TIMEOUT_S = 20.0
FIRST_HOST = 11  # hosts get .11, .12, ... of the subnet; the control host gets .1
HOSTS_MAX = 200
BRIDGE = "br0"
# Without one of its own a bridge has its lowest port's: pulling that cable would change it, and cut
# the control host off from the others until they ask for its address again, up to a minute.
BRIDGE_MAC = "02:00:00:00:00:01"


class Lab:
    """A control host and some hosts on one bridge; a context manager.

    Attributes:
        control: the host that carries the bridge; run etcd and coordinators here.
        hosts: the others by name, those that were powered off included.
    """

    control: Host
    hosts: dict[str, Host]

    def __init__(
        self,
        root: Path,
        hosts: Sequence[str],
        subnet: str = "10.77.0.0/24",
        private: Sequence[str] = (),
    ) -> None:
        """Prepare; nothing is made before `start`.

        Args:
            root: a directory of the caller's; each host's disk becomes `root/hosts/<name>`.
            hosts: names, in order of address.
            subnet: of the bridge; may be the same in several labs.
            private: further directories of which each host gets an empty one of its own (/run and
                /dev/shm always are). Nothing needed later may lie below them.
        """
        self.hosts = {}
        self.root = root.resolve()
        self._names = tuple(hosts)
        self._network = ipaddress.IPv4Network(subnet)
        self._private = list(private)
        self._holders: list[subprocess.Popen[bytes]] = []
        self._started = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Make the hosts. On any failure what was made is taken down again.

        Raises LabUnavailable where no lab is possible, LabError otherwise. Does nothing if started.
        """
        if self._started:
            return
        require_what_a_lab_needs()
        self._started = True
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._write_hosts_file()
            prefix = self._network.prefixlen
            self.control = self._spawn("control", str(self._network[1]), "")
            configure(
                self.control,
                f"link add {BRIDGE} address {BRIDGE_MAC} type bridge",
                f"address add {self.control.address}/{prefix} dev {BRIDGE}",
                f"link set {BRIDGE} up",
                "link set lo up",
            )
            for name in self._names:
                self.add_host(name)
        except BaseException:
            self.close()
            raise

    def add_host(self, name: str) -> Host:
        """A further host, or one that was powered off again (with its old address and disk).

        Raises LabError if a host of that name is alive.
        """
        old = self.hosts.get(name)
        if name == "control" or (old is not None and old.alive):
            raise LabError(f"this lab has a host named {name}")
        if old is not None:
            old.release()
        index = list(self.hosts).index(name) if old is not None else len(self.hosts)
        if index >= min(HOSTS_MAX, self._network.num_addresses - FIRST_HOST - 1):
            raise LabError(f"no address is left in {self._network} for host {name}")
        address = str(self._network[FIRST_HOST + index])
        port = f"v{index}"
        host = self.hosts[name] = self._spawn(name, address, port)
        self._write_hosts_file()
        try:
            self._connect(host, port)
        except BaseException:
            host.kill()
            raise
        return host

    def _connect(self, host: Host, port: str) -> None:
        """Run a cable from the bridge to the host's `eth0`."""
        there = pid_in_control(host.init_pid)
        configure(
            self.control,
            f"link add {port} type veth peer name eth0 netns {there}",
            f"link set {port} master {BRIDGE}",
            f"link set {port} up",
        )
        configure(
            host,
            "link set lo up",
            f"address add {host.address}/{self._network.prefixlen} dev eth0",
            "link set eth0 up",
        )

    def close(self) -> None:
        """End every process of every host and wait for it (bounded). The disks stay."""
        if not self._started:
            return
        self._started = False
        everyone = [*self.hosts.values()]
        if hasattr(self, "control"):
            everyone.append(self.control)
            self.control.kill()
        for host in everyone:
            host.release()
        for holder in self._holders:
            holder.kill()  # those that never reported; the others are gone with their PID 1
            holder.wait(START_TIMEOUT_S)
        self._holders.clear()

    def _spawn(self, name: str, address: str, port: str) -> Host:
        """Start a PID 1 and wait until it reports; its namespaces have no cable yet."""
        disk = self.root / "hosts" / name
        disk.mkdir(parents=True, exist_ok=True)
        control = self.control if port else None
        outer = os.pidfd_open(control.init_pid) if control else -1
        owner = os.pidfd_open(os.getpid())
        ours, theirs = socket.socketpair()
        try:
            settings = Settings(
                name=name,
                report_fd=theirs.fileno(),
                owner_fd=owner,
                outer_fd=outer,
                disk=str(disk),
                disk_at=str(DISK),
                hosts_file=str(self.root / "hosts-file"),
                private=self._private,
            )
            holder = subprocess.Popen(
                [*INSIDE, "init", json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[fd for fd in (theirs.fileno(), owner, outer) if fd >= 0],
                start_new_session=True,
            )
            self._holders.append(holder)
            theirs.close()
            return Host(name, address, first_report(ours, name), disk, control, port)
        finally:
            ours.close()
            theirs.close()
            for fd in (owner, outer):
                if fd >= 0:
                    os.close(fd)

    def _write_hosts_file(self) -> None:
        """Every host sees this one file as /etc/hosts; it is rewritten in place."""
        lines = ["127.0.0.1 localhost", "::1 localhost", f"{self._network[1]} control"]
        lines += [f"{host.address} {host.name}" for host in self.hosts.values()]
        (self.root / "hosts-file").write_text("\n".join(lines) + "\n")


def first_report(report: socket.socket, name: str) -> int:
    """Wait for a new PID 1's first word and return its pid in our namespace, told by the kernel."""
    report.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    report.settimeout(START_TIMEOUT_S)
    try:
        words, ancillary, _, _ = report.recvmsg(4096, socket.CMSG_SPACE(12))
    except TimeoutError:
        raise LabError(f"host {name} did not start within {START_TIMEOUT_S} s") from None
    if words != b"ready":
        why = words.decode() or "it ended without a word"
        raise LabUnavailable(f"host {name}: no namespaces of its own: {why}")
    return int.from_bytes(ancillary[0][2][:4], sys.byteorder)


def configure(host: Host, *lines: str) -> None:
    """Give `ip` several lines at once."""
    host.run(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n")


def pid_in_control(pid: int) -> int:
    """A nested host's PID 1, as the control host numbers it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-2])
    raise LabError("this kernel does not tell a process's pids (NSpid)")


def require_what_a_lab_needs() -> None:
    """Raise LabUnavailable, naming what is missing."""
    if not sys.platform.startswith("linux"):
        raise LabUnavailable("a lab is made of Linux namespaces; this is not Linux")
    if os.geteuid() != 0:
        raise LabUnavailable("a lab needs root: it makes network, PID and mount namespaces")
    if shutil.which("ip") is None:
        raise LabUnavailable("a lab needs `ip` (package iproute2): run `make tools`")
