"""Which connections are the job's own: those that two different workers recorded."""

from dataclasses import replace

from coordinator.core.connections import leaving, of_the_job
from coordinator.core.model import Endpoint, WorkerRecord
from tests.unit.core.test_planner import worker

HERE, THERE = Endpoint("10.0.0.1", 1, "10.0.0.2", 2), Endpoint("10.0.0.2", 2, "10.0.0.1", 1)
HALF = Endpoint("10.0.0.1", 3, "10.0.0.2", 2)  # the other end has closed it
OWN = (Endpoint("10.0.0.1", 4, "10.0.0.1", 5), Endpoint("10.0.0.1", 5, "10.0.0.1", 4))
LOCAL = Endpoint("127.0.0.1", 6, "127.0.0.1", 7)
LOCAL_TOO = Endpoint("127.0.0.1", 7, "127.0.0.1", 6)


def records(*connections: tuple[Endpoint, ...], nodes: str = "12") -> list[WorkerRecord]:
    return [
        replace(worker(number, f"node-{node}"), connections=ends)
        for number, (ends, node) in enumerate(zip(connections, nodes, strict=True))
    ]


def test_both_ends_must_be_recorded() -> None:
    made = records((HERE, HALF), (THERE,))
    assert of_the_job(made) == {0: (HERE,), 1: (THERE,)}
    assert len(leaving(made)) == 1
    assert "worker 0: what is connected to 10.0.0.2:2," in leaving(made)[0]


def test_what_a_worker_has_with_itself_is_neither() -> None:
    made = records(OWN, ())
    assert of_the_job(made) == {0: (), 1: ()}
    assert leaving(made) == ()


def test_loopback_joins_workers_of_one_node_only() -> None:
    assert of_the_job(records((LOCAL,), (LOCAL_TOO,), nodes="11")) == {0: (LOCAL,), 1: (LOCAL_TOO,)}
    apart = records((LOCAL,), (LOCAL_TOO,), nodes="12")
    assert of_the_job(apart) == {0: (), 1: ()}
    assert len(leaving(apart)) == 2


def test_many_are_told_in_short() -> None:
    many = tuple(Endpoint("10.0.0.1", 100 + n, f"10.9.9.{n // 2}", 443) for n in range(12))
    (told,) = leaving(records(many, ()))
    assert "10.9.9.0:443 (2), " in told
    assert "and 2 others" in told
