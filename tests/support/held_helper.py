"""A helper that answers when it is let: to a request that names a gate once that one is opened."""

from __future__ import annotations

import json
import os
import socket
import sys


def main() -> None:
    """Answer until the input ends."""
    pass_through(os.environ.get("GATE_AT_START", ""))
    answer({"result": 0, "version": 13000, "moves": True})
    for line in sys.stdin:
        request = json.loads(line)
        pass_through(request.get("gate", ""))
        if request.get("end"):
            sys.stderr.write("its last words\n")
            sys.exit(3)
        answer({"result": 0, "value": request["value"]})


def pass_through(gate: str) -> None:
    """Wait until whoever listens there hangs up."""
    if gate:
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(gate)
            door.recv(1)


def answer(fields: dict[str, object]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
