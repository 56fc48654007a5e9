"""A light job: ranks on several nodes step in lockstep over TCP, and do what they are told.

    pair.py worker WORKER RANKS HOSTS SHARED     starts RANKS ranks, ends all when one ends
    pair.py rank SHARED HOSTS                    one of them; RANK, WORLD_SIZE in the environment

Told by the file SHARED/tell/RANK, read at every step between the exchange and `step()`:

    stall          stay there until the file is gone
    lag STEP       stay there from that step on until the file is gone
    open KIND…     open these and keep them until the file is gone; see ODD
    uring          write what io_uring_setup answers to SHARED/said/RANK
    exit CODE      end at once
    evaluate       say that no steps are taken, and stay there until the file is gone
    poison         be poisoned from now on: that is part of what is saved
    bite           end at once with code 3, if poisoned

With PAIR_GPU, a folder, each rank has the fake device of its local number: its chain of digests is
in device memory alone, and 8 MiB beside it that must stay as they are. Its exchanges are work on
the device, as collectives are: the next one is submitted at the end of each step, and done by a
stream while the rank goes on, or is parked. With PAIR_LOOSE in the environment a rank that is lost
costs the others nothing: they step on.
"""

import contextlib
import ctypes
import hashlib
import os
import queue
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable

PORT = 7600
STEP_S = 0.02
CONNECT_S = 60.0
COUNT = struct.Struct("!Q")
LOST = -1
STAYS = ("stall", "lag", "evaluate")
LOOSE = "PAIR_LOOSE" in os.environ
GPU = os.environ.get("PAIR_GPU", "")
WEIGHTS_BYTES, WEIGHTS_STEPS = 8 << 20, 40
SYS_IO_URING_SETUP, SYS_PIDFD_OPEN, SYS_PIDFD_GETFD = 425, 434, 438
SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282}

libc = ctypes.CDLL(None, use_errno=True)


def syscall(number: int, *arguments: object) -> int:
    """The result, or minus errno."""
    result = int(libc.syscall(number, *arguments))
    return -ctypes.get_errno() if result < 0 else result


def make_io_uring() -> int:
    """A descriptor of a new io_uring of 4 entries, or minus errno."""
    return syscall(SYS_IO_URING_SETUP, 4, ctypes.create_string_buffer(120))


def borrow(lender: str, fd: str) -> int:
    """Another process's descriptor, for what this one may not make itself."""
    handle = syscall(SYS_PIDFD_OPEN, int(lender), 0)
    try:
        return syscall(SYS_PIDFD_GETFD, handle, int(fd), 0)
    finally:
        os.close(handle)


def terminal() -> int:
    """One end of a pseudo terminal; the other is closed."""
    ours, theirs = os.openpty()
    os.close(theirs)
    return ours


ODD: dict[str, Callable[..., int]] = {
    "userfaultfd": lambda: syscall(SYS_USERFAULTFD[os.uname().machine], os.O_CLOEXEC),
    "terminal": terminal,
    "borrowed": borrow,
}


def open_odd(words: list[str]) -> list[int]:
    """Open each KIND, written as `kind` or `kind:argument:…`."""
    opened = []
    for word in words:
        kind, *arguments = word.split(":")
        fd = ODD[kind](*arguments)
        if fd < 0:
            raise OSError(-fd, f"{word}: {os.strerror(-fd)}")
        opened.append(fd)
    return opened


class Rank:
    """One rank: its connections, and what it was told."""

    def __init__(self, shared: str, hosts: list[str]) -> None:
        self.number, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.shared = shared
        self.odd: list[int] = []
        self.poisoned = False
        self.obeyed: list[str] = []
        self.peers: list[socket.socket] = []
        self.device = Device(self.number) if GPU else None
        if self.number == 0:
            with socket.create_server(("0.0.0.0", PORT), backlog=self.size) as server:
                self.peers = [server.accept()[0] for _ in range(self.size - 1)]
        else:
            self.peers = [connect(hosts[0])]

    def run(self) -> None:
        """Step for ever; ends the process when a peer is gone."""
        from worker_shim.hook import step

        at = 1
        self.submit(at)
        while True:
            self.meet(at)
            if self.device is not None:
                self.write("chain", f"{at} {self.device.step(at)}")
            self.obey(at)
            time.sleep(STEP_S)
            self.submit(at + 1)
            step()
            self.write("steps", str(at))
            at += 1

    def submit(self, at: int) -> None:
        """The exchange of that step may begin; without a device it is begun by `meet`."""
        if self.device is not None:
            self.device.stream.submit(lambda: self.exchange(at))

    def meet(self, at: int) -> None:
        """Everybody is at that step; ends the process when a peer is gone."""
        if self.device is not None:
            self.device.stream.wait()
        else:
            self.exchange(at)

    def exchange(self, at: int) -> None:
        """Everyone tells rank 0 which step this is, and rank 0 tells everyone."""
        if self.number != 0:
            self.send(at)
        for peer in tuple(self.peers):
            told = self.receive(peer, at)
            if told not in (at, LOST):
                sys.exit(f"rank {self.number} is at step {at} and was told {told}")
        if self.number == 0:
            self.send(at)

    def send(self, at: int) -> None:
        """Tell every peer."""
        for peer in tuple(self.peers):
            try:
                peer.sendall(COUNT.pack(at))
            except OSError:
                self.lose(peer, at)

    def lose(self, peer: socket.socket, at: int) -> None:
        """A peer is gone: the end, unless this job is loose."""
        if not LOOSE:
            sys.exit(f"rank {self.number} lost a peer at step {at}")
        peer.close()
        if peer in self.peers:
            self.peers.remove(peer)

    def receive(self, peer: socket.socket, at: int) -> int:
        """The other's step; LOST when it is gone."""
        data = b""
        while len(data) < COUNT.size:
            try:
                part = peer.recv(COUNT.size - len(data))
            except ConnectionError:
                part = b""
            if not part:
                self.lose(peer, at)
                return LOST
            data += part
        return int(COUNT.unpack(data)[0])

    def obey(self, at: int) -> None:
        """Do what the file says."""
        words = self.told()
        if words == self.obeyed and words[:1] != ["lag"]:
            return
        self.obeyed = words
        if not words:
            while self.odd:
                os.close(self.odd.pop())
            return
        verb, *rest = words
        if verb in STAYS and at >= int(rest[0] if rest else 0):
            self.stay(verb)
            self.obey(at)
        elif verb == "poison":
            self.poisoned = True
            self.write("said", "poisoned")
        elif verb == "bite" and self.poisoned:
            os._exit(3)
        elif verb == "open":
            self.odd = open_odd(rest)
            self.write("said", "opened")
        elif verb == "uring":
            self.write("said", str(make_io_uring()))
        elif verb == "exit":
            os._exit(int(rest[0]))

    def stay(self, verb: str) -> None:
        """Take no step while the file says so."""
        from worker_shim.hook import no_steps

        with no_steps() if verb == "evaluate" else contextlib.nullcontext():
            self.write("said", verb)
            while self.told()[:1] == [verb]:
                time.sleep(STEP_S)

    def told(self) -> list[str]:
        """The words of the file; none when there is no file."""
        try:
            with open(f"{self.shared}/tell/{self.number}") as file:
                return file.read().split()
        except FileNotFoundError:
            return []

    def write(self, directory: str, text: str) -> None:
        """Say something to the test; the file is whole or not there."""
        temporary = f"{self.shared}/{directory}/.{self.number}"
        with open(temporary, "w") as file:
            file.write(text)
        os.replace(temporary, f"{self.shared}/{directory}/{self.number}")


class Stream:
    """Work on a device that was submitted: it is done in its turn, whatever the rank does then."""

    def __init__(self, work: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self.work = work
        self.submitted: queue.SimpleQueue[tuple[contextlib.ExitStack, Callable[[], None]]]
        self.submitted, self.ended = queue.SimpleQueue(), queue.SimpleQueue[BaseException | None]()
        threading.Thread(target=self.run, daemon=True).start()

    def submit(self, what: Callable[[], None]) -> None:
        """Waits while the device is locked."""
        begun = contextlib.ExitStack()
        begun.enter_context(self.work())
        self.submitted.put((begun, what))

    def wait(self) -> None:
        """Until the oldest is done; raises what it ended by."""
        if (error := self.ended.get()) is not None:
            raise error

    def run(self) -> None:
        """One after another, for ever."""
        while True:
            begun, what = self.submitted.get()
            error: BaseException | None = None
            with begun:
                try:
                    what()
                except BaseException as raised:
                    error = raised
            self.ended.put(error)


class Device:
    """What a rank has in device memory."""

    def __init__(self, rank: int) -> None:
        sys.path.insert(0, os.environ["PAIR_FAKES"])
        from device import Gpu

        local = int(os.environ["LOCAL_RANK"])
        uuid = os.environ["PAIR_UUIDS"].split(",")[local]
        self.gpu = Gpu(GPU, uuid)
        self.weights = hashlib.sha256(str(rank).encode()).digest() * (WEIGHTS_BYTES // 32)
        self.digest = hashlib.sha256(self.weights).hexdigest()
        self.gpu.write("weights", self.weights)
        del self.weights
        self.gpu.write("chain", str(rank).encode())
        self.stream = Stream(self.gpu.work)

    def step(self, at: int) -> str:
        """The chain's next link; ends the process when device memory is not what it was."""
        link = hashlib.sha256(self.gpu.read("chain")).hexdigest()
        self.gpu.write("chain", link.encode())
        if at % WEIGHTS_STEPS == 0:
            found = hashlib.sha256(self.gpu.read("weights")).hexdigest()
            if found != self.digest:
                sys.exit("device memory is not what it was")
        return link


def connect(host: str) -> socket.socket:
    """Connect to rank 0, which may not be listening yet."""
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            return socket.create_connection((host, PORT))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def worker(number: int, ranks: int, hosts: str, shared: str) -> int:
    """Start this node's ranks; when one ends (of a loose job: the last) end the others."""
    size = ranks * len(hosts.split(","))
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "rank", shared, hosts],
            env={
                **os.environ,
                "RANK": str(number * ranks + local),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(ranks),
            },
        )
        for local in range(ranks)
    ]
    for _ in range(ranks if LOOSE else 1):
        _, status = os.wait()
    for child in started:
        child.kill()
        child.wait()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main() -> None:
    """Dispatch on the first argument."""
    verb, *rest = sys.argv[1:]
    if verb == "worker":
        sys.exit(worker(int(rest[0]), int(rest[1]), rest[2], rest[3]))
    Rank(rest[0], rest[1].split(",")).run()


if __name__ == "__main__":
    main()
