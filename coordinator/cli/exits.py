"""Exit codes of `allstop`, for programs. The kinds of error are described in core/errors.py."""

from __future__ import annotations

from coordinator.core.errors import AllstopError, all_kinds

INTERRUPTED = 130

EXIT_CODES = {
    0: "done",
    1: "an error without a kind of its own",
    2: "the command line or the request makes no sense",
    3: "refused: it cannot be as things are; nothing was changed",
    4: "no job, snapshot, attempt or node of that name",
    5: "another checkpoint or restore has the job",
    6: "no set of nodes fits the snapshot; every reason for every node is printed",
    7: "a checkpoint was tried and undone; the job runs on",
    8: "the same, because somebody was awaited in vain",
    9: "a restore was tried and cleared away; the snapshot is untouched",
    10: "an outside program (criu, nft …) failed on a node",
    11: "no coordinator can be reached, or a node whose answer is wanted",
    12: "etcd did not do what was asked",
    13: "fenced: an older epoch spoke, or a lost node came back",
    14: "this machine lacks something",
    15: "forbidden: the certificate is not of the role for it",
    16: "refused: the run that is to be replaced may go on where nobody sees it",
    17: "a snapshot is damaged; what is broken is printed",
    70: "a defect of allstop itself",
    INTERRUPTED: "interrupted by Ctrl-C; what was begun goes on (`allstop watch ID`)",
}


def kinds_by_exit_code() -> dict[int, list[type[AllstopError]]]:
    """Which kinds of error end with which code."""
    kinds: dict[int, list[type[AllstopError]]] = {}
    for kind in all_kinds().values():
        kinds.setdefault(kind.exit_code, []).append(kind)
    return kinds
