"""`talk.py` as a training: each round is a step. SHARED/starts.N tells what it was started with."""

import os
import sys

import talk

from worker_shim.hook import step


class Trainer(talk.Talker):
    """A talker that finishes a step with each round."""

    def write(self, what: str, text: str) -> None:
        """As a talker; a round is a step."""
        super().write(what, text)
        if what == "round":
            step()


if __name__ == "__main__":
    worker, hosts, outside, shared = sys.argv[1:]
    with open(f"{shared}/starts.{worker}", "a") as told:
        told.write(f"{hosts} {os.environ['COLOUR']} {os.getcwd()}\n")
    Trainer(int(worker), hosts.split(","), outside, shared).run()
