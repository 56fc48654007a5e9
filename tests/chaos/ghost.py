"""A leader of the past in the place of a coordinator: `python -m tests.chaos.ghost ADDRESS JOB`.

It welcomes every shim in epoch 1, which is over since etcd has a history, and orders its workers
to hold. Each message of a shim after that Welcome is told on stdout: nobody may obey.
"""

from __future__ import annotations

import asyncio
import sys

from tests.support.fake_coordinator import FakeCoordinator, Peer, order_message

OLD_EPOCH = 1
HOLD_S = 30.0
POLL_S = 0.05


async def haunt(address: str, job: str) -> None:
    """Speak to whoever comes, until SIGTERM ends this process."""
    known: set[int] = set()
    told: dict[str, str] = {}
    async with FakeCoordinator(address, epoch=OLD_EPOCH) as ghost:
        while True:
            for node, peer in tuple(ghost.peers.items()):
                if id(peer) not in known:
                    known.add(id(peer))
                    order_holds(peer, job)
                for message in tuple(peer.seen):
                    tell(told, node, str(message.WhichOneof("body")), str(message.result.failure))
            await asyncio.sleep(POLL_S)


def order_holds(peer: Peer, job: str) -> None:
    """Whatever worker the node has is to be held."""
    for worker in peer.hello.workers:
        action = f"{job}-of-the-past"
        peer.send(order_message("HOLD", action, job, worker.worker, OLD_EPOCH, HOLD_S, HOLD_S, {}))


def tell(told: dict[str, str], node: str, kind: str, failure: str) -> None:
    """Say once for each node and kind of message that a shim has answered; a refusal is none."""
    if "Fenced" not in failure and told.get(f"{node} {kind}") is None:
        told[f"{node} {kind}"] = failure
        print(f"{node} sent {kind} to a leader of epoch {OLD_EPOCH}", flush=True)


if __name__ == "__main__":
    asyncio.run(haunt(sys.argv[1], sys.argv[2]))
