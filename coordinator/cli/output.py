"""Where words go: data to stdout, everything for people to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.core.errors import AllstopError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from coordinator.link.security import Tls

DEFAULT_PORT = 7411
SOCKET_NAME = "allstop.sock"
PIPE_WIDTH = 240  # columns of a table that no terminal limits


def state_directory() -> Path:
    """Where `allstop up` keeps its data: below XDG_STATE_HOME, else ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "allstop"


def coordinator_socket() -> Path:
    """The unix socket of the `allstop up` of this user."""
    return state_directory() / SOCKET_NAME


def plain(value: object) -> object:
    """A record, or a list of them, as what JSON knows; every field is there by its own name."""
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value


class Output:
    """The consoles and the format of one run of `allstop`; click hands it to every verb."""

    def __init__(self, arguments: Sequence[str] | None = None) -> None:
        """Begin with a table for people and the default coordinators."""
        self.format = "table"
        self.coordinators: tuple[str, ...] = ()
        self.tls_files: dict[str, Path | str] = {}  # by name of the option
        self.insecure = False  # plain TCP may leave this machine
        self.ranks: dict[str, int] = {}  # how much the option counts that was taken last
        self.arguments = tuple(sys.argv[1:] if arguments is None else arguments)

    @property
    def json(self) -> bool:
        """True when stdout is for a program."""
        return self.format == "json"

    @property
    def addresses(self) -> tuple[str, ...]:
        """The coordinators to try, in order."""
        if self.coordinators:
            return self.coordinators
        socket = coordinator_socket()
        own = (f"unix:{socket}",) if socket.exists() else ()
        return (*own, f"127.0.0.1:{DEFAULT_PORT}")

    @property
    def safe_addresses(self) -> tuple[str, ...]:
        """The same; raises BadRequest where one would be dialled plainly over the network."""
        from coordinator.security.plain import require_encrypted

        if not self.tls.wanted:
            require_encrypted(self.addresses, "dialling", insecure=self.insecure)
        return self.addresses

    @property
    def tls(self) -> Tls:
        """How TCP connections are encrypted, if they are."""
        from coordinator.link.security import Tls

        files: dict[str, Any] = self.tls_files
        return Tls(
            ca=files.get("tls_ca"),
            certificate=files.get("tls_cert"),
            key=files.get("tls_key"),
            server_name=files.get("tls_server_name", ""),
        )

    @cached_property
    def people(self) -> Console:
        """Console on stderr."""
        from rich.console import Console

        return Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

    @cached_property
    def data(self) -> Console:
        """Console on stdout; a pipe gets whole lines however long they are."""
        from rich.console import Console

        width = None if sys.stdout.isatty() else PIPE_WIDTH
        return Console(highlight=False, markup=False, width=width)

    def emit(self, value: object, view: Callable[[], RenderableType]) -> None:
        """Print the result: `value` as one line of JSON, or what `view` makes for people."""
        if self.json:
            print(json.dumps(plain(value), ensure_ascii=False), flush=True)
        else:
            self.data.print(view())

    def note(self, text: str, style: str = "") -> None:
        """Tell people something that is not the result."""
        self.people.print(text, style=style)

    def error(self, error: AllstopError, **more: object) -> None:
        """Say what happened, where, whether it may have happened, what to do, and the details.

        With `-o json` stdout gets the same as {"error": {…}}, and `more` beside it.
        """
        from rich.text import Text

        lines = [Text.assemble(("error: ", "bold red"), (error.what, "bold"))]
        lines += [
            Text.assemble((f"  {name:<6} ", "dim"), text)
            for name, text in (
                ("where", str(error.where)),
                ("note", "" if error.definite else "it may have happened all the same; look first"),
                ("next", error.advice),
            )
            if text
        ]
        lines += [Text.assemble(("  | ", "dim"), line) for line in error.details]
        self.people.print(Text("\n").join(lines))
        if self.json:
            fields = {**error.to_fields(), "exit_code": error.exit_code}
            print(json.dumps({"error": fields, **more}, ensure_ascii=False), flush=True)
