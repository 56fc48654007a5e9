"""Passes on which nodes Ray drains, to `POST /hooks/drain` of a coordinator.

    python drains.py URL [--token-file FILE] [--every SECONDS] [--ca FILE] [--cert FILE --key FILE]

Runs once a cluster, in any environment that has Ray and reaches it (`RAY_ADDRESS`, or on a node).
It needs nothing of allstop. What Ray Train's own watcher of preemptions looks at is looked at here:
`get_draining_nodes()` of Ray's state, which `ray drain-node`, the autoscaler, and a raylet that got
SIGTERM fill; it is no public interface of Ray, as `ray drain-node` is none. Each node and deadline
is told until it is taken, with `ray.nodes()` beside, by which a coordinator finds its own node.
"""

from __future__ import annotations

import argparse
import json
import logging
import ssl
import time
import urllib.error
import urllib.request
from typing import Any

log = logging.getLogger("drains")

REQUEST_S = 30.0
LATER = frozenset({409, 503})  # refused as things stand, or nobody leads: told again


def draining() -> dict[str, int]:
    """Ray's ids of nodes that it drains, and until when in ms since 1970; 0: no deadline."""
    import ray._private.state  # type: ignore[import-not-found]

    return dict(ray._private.state.state.get_draining_nodes())


def notice(going: dict[str, int], nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """What a coordinator is told of nodes with one deadline."""
    kept = ("NodeID", "NodeManagerAddress", "NodeManagerHostname")
    return {
        "preempted_node_ids": sorted(going),
        "deadline_ms": max(going.values()),
        "nodes": [{key: each[key] for key in kept} for each in nodes if each["NodeID"] in going],
    }


class Teller:
    """Who tells one coordinator's page."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._url = options.url.rstrip("/") + "/hooks/drain"
        self._token_file = options.token_file
        self._context = None
        if options.url.startswith("https:"):
            self._context = ssl.create_default_context(cafile=options.ca)
            if options.cert:
                self._context.load_cert_chain(options.cert, options.key)

    def tell(self, body: dict[str, Any]) -> int:
        """The status of the answer; 0 where there is none."""
        headers = {"Content-Type": "application/json"}
        if self._token_file:
            with open(self._token_file) as file:
                headers["Authorization"] = f"Bearer {file.read().strip()}"
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_S, context=self._context) as got:
                log.warning("told: %s", got.read().decode())
                return int(got.status)
        except urllib.error.HTTPError as error:
            log.warning("refused with %d: %s", error.code, error.read().decode(errors="replace"))
            return int(error.code)
        except OSError as error:
            log.warning("%s does not answer: %s", self._url, error)
            return 0


def look(told: dict[str, int], teller: Teller) -> None:
    """Tell what is new, each node for itself: what is refused of one is not refused of others."""
    import ray

    now = draining()
    for name in [name for name in told if name not in now]:
        del told[name]
    nodes = ray.nodes() if any(told.get(name) != at for name, at in now.items()) else []
    for name, at in now.items():
        if told.get(name) != at:
            status = teller.tell(notice({name: at}, nodes))
            if status and status not in LATER:
                told[name] = at


def main() -> None:
    """Look until it is ended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", help="of the coordinator's page, such as https://10.0.0.1:7412")
    parser.add_argument("--token-file", help="the token of the coordinator's --hook-token")
    parser.add_argument("--ca", help="the authority of the coordinator's certificate")
    parser.add_argument("--cert", help="a certificate of an operator")
    parser.add_argument("--key", help="its key")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two looks")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")

    import ray

    ray.init(address="auto", logging_level=logging.ERROR, log_to_driver=False)
    teller, told = Teller(options), dict[str, int]()
    while True:
        look(told, teller)
        time.sleep(options.every)


if __name__ == "__main__":
    main()
