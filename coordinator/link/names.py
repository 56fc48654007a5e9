"""Names that become parts of etcd keys and of paths."""

from __future__ import annotations

import re

from coordinator.core.errors import BadRequest

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def check_name(kind: str, name: str) -> None:
    """Raises BadRequest for a name that cannot be one."""
    if NAME.fullmatch(name) is None:
        raise BadRequest(
            f"{name!r} cannot be the name of a {kind}",
            advice="a name is 1 to 63 letters, digits, '.', '_', '-'; the first a letter or digit",
        )
