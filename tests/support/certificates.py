"""Certificates with roles, as `allstop certs` makes them."""

from __future__ import annotations

from pathlib import Path

from coordinator.link.security import Tls
from coordinator.security.authority import issue, make_authority
from coordinator.security.roles import Holder, Role

HERE = ("127.0.0.1", "localhost")


class Certificates:
    """One authority, and whatever is asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = make_authority(folder).certificate
        self._made: dict[Holder, Tls] = {}

    def of(self, role: str, name: str, *hosts: str) -> Tls:
        """The files of one holder; a coordinator answers at this machine's own names."""
        holder = Holder(Role(role), name)
        if holder not in self._made:
            made = issue(self.folder, holder, hosts or HERE, into=self.folder, days=2)
            self._made[holder] = Tls(self.ca, made.certificate, made.key)
        return self._made[holder]

    def flags(self, role: str, name: str, *hosts: str) -> tuple[str, ...]:
        """The same as options of `allstop`."""
        tls = self.of(role, name, *hosts)
        files = (("ca", tls.ca), ("cert", tls.certificate), ("key", tls.key))
        return tuple(f"--tls-{option}={file}" for option, file in files)
