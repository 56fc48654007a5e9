"""What is wrong with a file of options, as far as that can be seen without starting anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from coordinator.cli.config_file import keys_of, read_options, typed_values
from coordinator.cli.output import Output
from coordinator.core.errors import AllstopError, BadRequest

PROGRAMS = ("criu", "etcd_program")
ADDRESSES = ("listen", "peer", "http", "metrics", "partner_listen", "coordinators", "etcd")
UNIX_TOO = ("coordinators", "etcd")
TLS = ("tls_ca", "tls_cert", "tls_key", "tls_server_name")

Values = dict[str, Any]
Fault = tuple[str, AllstopError]  # the parameter it is about, and what is wrong


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a file."""

    file: str
    key: str  # empty: the file as a whole
    what: str
    advice: str


def problems_of(path: Path, role: str, command: click.Command) -> tuple[Problem, ...]:
    """Everything that is wrong with a file of options of this role; empty: it would be taken."""
    ctx = click.Context(command, info_name=role, obj=Output([]))
    try:
        found, wrong = read_options(path, ctx)
    except BadRequest as error:
        return (Problem(str(path), "", _without(path, error.what), error.advice),)
    problems = [Problem(str(path), each.key, each.what, each.advice) for each in wrong]
    bad = {each.key.partition(".")[0] for each in wrong}
    for name, fault in _faults(role, typed_values(found, ctx)):
        key, usage = _described(command, name)
        if key not in bad:
            problems.append(Problem(str(path), key, fault.what, fault.advice or usage))
            bad.add(key)  # one thing at a time: what follows may come of it
    return tuple(problems)


def _without(path: Path, text: str) -> str:
    """A sentence about a file without its name, which stands beside it."""
    return text.removeprefix(f"{path} ").removeprefix(f"{path}: ")


def _described(command: click.Command, name: str) -> tuple[str, str]:
    """The key of a parameter, and what the help says of it."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    for each in (command, *below):
        for param in each.params:
            if param.name == name and isinstance(param, click.Option):
                return keys_of(param)[0], param.help or ""
    return name, ""


def _faults(role: str, values: Values) -> Iterator[Fault]:
    """What is wrong with values that are each of the right type."""
    yield from _addresses(values)
    yield from _programs(values)
    yield from _names(role, values)
    yield from _store(values)
    tls = list(_tls(role, values))
    yield from tls
    if not tls:
        yield from _plain(role, values)


def _tried(name: str, check: Callable[[], object]) -> Iterator[Fault]:
    try:
        check()
    except AllstopError as error:
        yield name, error


def _addresses(values: Values) -> Iterator[Fault]:
    from coordinator.server.addresses import advertised, is_unix, split

    for name in ADDRESSES:
        for address in _each(values.get(name)):
            bare = address.removeprefix("https://").removeprefix("http://").rstrip("/")
            if not (is_unix(bare) and name in UNIX_TOO):
                yield from _tried(name, partial(split, bare if name == "etcd" else address))
    if wanted := values.get("advertise"):
        listened = _each(values.get("listen")) or ["127.0.0.1:1"]
        yield from _tried("advertise", lambda: advertised(wanted, listened, alone=False))


def _each(value: Any) -> list[str]:
    """One value, several, or several in one text."""
    given = [value] if isinstance(value, str) else list(value or ())
    return [part for text in given for part in text.split(",") if part]


def _programs(values: Values) -> Iterator[Fault]:
    for name in PROGRAMS:
        program = values.get(name)
        if program is not None and not os.access(program, os.X_OK):
            why = "cannot be run" if Path(program).exists() else "does not exist"
            yield name, BadRequest(f"{program} {why}", advice="`make tools` makes one")


def _names(role: str, values: Values) -> Iterator[Fault]:
    from coordinator.link.names import check_name

    for name, kind in (("node", "node"), ("job", "job"), ("name", "coordinator")):
        if values.get(name):
            yield from _tried(name, lambda n=name, k=kind: check_name(k, values[n]))  # type: ignore[misc]
    if role != "shim":
        from coordinator.server.run import policy_of

        yield from _tried("policy", lambda: policy_of(values.get("policy") or {}))
    worker, workers = values.get("worker"), values.get("workers")
    if worker is not None and workers is not None and worker >= workers:
        yield "worker", BadRequest(f"worker {worker} of {workers}", advice="they count from 0")


def _store(values: Values) -> Iterator[Fault]:
    from worker_shim.images.keys import checked_source
    from worker_shim.images.objects.opening import checked_where

    if where := values.get("store"):
        yield from _tried("store", lambda: checked_where(where))
    if source := values.get("store_key"):
        yield from _tried("store_key", lambda: checked_source(source))


def _tls(role: str, values: Values) -> Iterator[Fault]:
    """Files that do not fit each other; named by the first of them that the file has."""
    from coordinator.link.security import channel_credentials, server_credentials

    for kind in ("tls", "etcd"):
        certificate, key = values.get(f"{kind}_cert"), values.get(f"{kind}_key")
        if bool(certificate) != bool(key):
            there, missing = ("cert", "key") if certificate else ("key", "cert")
            what = f"there is no {kind}-{missing}, and they belong together"
            yield f"{kind}_{there}", BadRequest(what, advice="name both files, or neither")
            return
    tls = _tls_of(values)
    if tls.wanted:
        first = next(name for name in ("tls_cert", *TLS) if values.get(name))
        check = channel_credentials if role == "shim" else server_credentials
        yield from _tried(first, lambda: check(tls))


def _tls_of(values: Values) -> Any:
    from coordinator.link.security import Tls

    return Tls(
        ca=values.get("tls_ca"),
        certificate=values.get("tls_cert"),
        key=values.get("tls_key"),
        server_name=values.get("tls_server_name") or "",
    )


def _plain(role: str, values: Values) -> Iterator[Fault]:
    """What would go over the network in plain text."""
    from coordinator.security.plain import require_encrypted

    insecure = bool(values.get("insecure"))
    tls = _tls_of(values)

    def refused(name: str, addresses: Iterable[str], what: str) -> Iterator[Fault]:
        whole = list(addresses)
        yield from _tried(name, lambda: require_encrypted(whole, what, insecure=insecure))

    if role == "shim":
        if not tls.wanted:
            yield from refused("coordinators", _each(values.get("coordinators")), "dialling")
        return
    if tls.certificate is None or tls.ca is None:
        yield from refused("listen", _each(values.get("listen")), "listening on")
        yield from refused("peer", _each(values.get("peer")), "listening on")
        yield from refused("http", _each(values.get("http")), "the page at")
    plain = [url for url in _each(values.get("etcd")) if not url.startswith("https://")]
    yield from refused("etcd", plain, "talking to etcd at")


def fitting_role(path: Path, commands: dict[str, click.Command]) -> str:
    """The role that a file is most likely of: by its name, else the one that knows most keys."""
    for role in commands:
        if path.stem == role or path.stem.endswith(f"-{role}"):
            return role
    unknown: dict[str, int] = {}
    for role, command in commands.items():
        try:
            _, wrong = read_options(path, click.Context(command, obj=Output([])))
        except BadRequest:
            return role  # whatever it is, it cannot be read
        unknown[role] = sum(each.unknown for each in wrong)
    return min(unknown, key=lambda role: unknown[role])
