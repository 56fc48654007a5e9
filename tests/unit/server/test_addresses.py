"""Ports held for several processes, and what others are told to dial."""

import socket

import pytest

from coordinator.core.errors import BadRequest, SetupError
from coordinator.server.addresses import HeldPorts, advertised, is_loopback, split


def listening(place: tuple[str, int], *, shared: bool) -> socket.socket:
    """As gRPC listens, alone or together with others."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        made.bind(place)
        made.listen()
    except OSError:
        made.close()
        raise
    return made


@pytest.mark.parametrize("fronts", [0, 2])
def test_a_held_port_is_for_those_who_share_it_alone(fronts: int) -> None:
    held = HeldPorts(["127.0.0.1:0"])
    place = split(held.addresses[0])
    assert place[1] > 0
    sharing = [listening(place, shared=True) for _ in range(fronts)]
    for taken in (place, ("0.0.0.0", place[1])):
        with pytest.raises(OSError, match="in use"):
            listening(taken, shared=False)
        with pytest.raises(SetupError, match=f"cannot listen on {taken[0]}:{taken[1]}"):
            HeldPorts([f"{taken[0]}:{taken[1]}"])
    for each in sharing:
        each.close()
    listening(place, shared=True).close()  # one that comes back
    held.release()
    listening(place, shared=False).close()


def test_it_gets_no_connection_itself() -> None:
    held = HeldPorts(["127.0.0.1:0"])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(split(held.addresses[0]), timeout=5)
    held.release()


def test_of_several_addresses_all_are_held_or_none() -> None:
    with listening(("127.0.0.1", 0), shared=False) as stranger:
        taken = f"127.0.0.1:{stranger.getsockname()[1]}"
        free = HeldPorts(["127.0.0.1:0"])
        address = free.addresses[0]
        free.release()
        with pytest.raises(SetupError, match=f"cannot listen on {taken}"):
            HeldPorts([address, taken])
        listening(split(address), shared=False).close()


@pytest.mark.parametrize("wrong", ["", "host", "host:", "host:x", "host:70000", ":-1"])
def test_what_is_no_address_is_named(wrong: str) -> None:
    with pytest.raises(BadRequest, match="HOST:PORT"):
        split(wrong)


TCP, V6, ANY, SOCKET = "10.0.0.1:7", "[fd00::1]:7", "0.0.0.0:7", "unix:/run/allstop.sock"


@pytest.mark.parametrize(
    ("wanted", "addresses", "alone", "dialled"),
    [
        ("", [TCP, SOCKET], False, TCP),
        ("", [V6], False, V6),
        ("", [TCP, SOCKET], True, SOCKET),
        ("", [ANY], True, "127.0.0.1:7"),
        ("", [SOCKET], False, SOCKET),
        ("a.example", [ANY, SOCKET], False, "a.example:7"),
        ("[fd00::2]", [V6], False, "[fd00::2]:7"),
        ("a.example:8", [ANY], False, "a.example:8"),
        ("[fd00::2]:8", [ANY], False, "[fd00::2]:8"),
    ],
)
def test_what_others_dial(wanted: str, addresses: list[str], alone: bool, dialled: str) -> None:
    assert advertised(wanted, addresses, alone=alone) == dialled


@pytest.mark.parametrize("every", ["0.0.0.0:7", "[::]:7", ":7"])
def test_every_address_is_none_that_others_can_dial(every: str) -> None:
    with pytest.raises(BadRequest, match="every address") as caught:
        advertised("", [every, SOCKET], alone=False)
    assert "--advertise" in caught.value.advice


@pytest.mark.parametrize(
    ("address", "own"),
    [
        ("127.0.0.1:7", True),
        ("http://127.0.0.1:2379", True),
        ("[::1]:7", True),
        ("localhost:7", True),
        (SOCKET, True),
        (TCP, False),
        (V6, False),
        ("https://etcd-0:2379", False),
    ],
)
def test_what_only_this_machine_can_dial(address: str, own: bool) -> None:
    assert is_loopback(address) is own


@pytest.mark.parametrize("wanted", ["a:b", "a.example"])
def test_an_advertised_host_needs_a_port_from_somewhere(wanted: str) -> None:
    with pytest.raises(BadRequest, match=r"HOST:PORT|no port"):
        advertised(wanted, [SOCKET], alone=False)
