"""Where objects are kept, as somebody writes it: `s3://bucket/prefix` and its kin."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.core.errors import BadRequest

SCHEMES = ("s3", "gs", "az", "memory")
EXAMPLE = "such as s3://bucket/prefix, gs://bucket, az://container/prefix"
ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
ALLOW_HTTP = "AWS_ALLOW_HTTP"
CA_BUNDLE = "AWS_CA_BUNDLE"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_PREFIX = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


@dataclass(frozen=True)
class Address:
    """A bucket (Azure: a container) and the folder in it that is ours."""

    scheme: str
    bucket: str
    prefix: str = ""

    @classmethod
    def parse(cls, where: str) -> Address:
        """Take `scheme://bucket/prefix` apart; raises BadRequest."""
        scheme, separator, rest = where.partition("://")
        bucket, _, prefix = rest.partition("/")
        prefix = prefix.strip("/")
        if not separator or scheme not in SCHEMES:
            raise BadRequest(f"{where!r} is no object storage", advice=EXAMPLE)
        if not _BUCKET.fullmatch(bucket):
            raise BadRequest(f"{where!r} names no bucket that could be", advice=EXAMPLE)
        if prefix and (not _PREFIX.fullmatch(prefix) or ".." in prefix.split("/")):
            raise BadRequest(
                f"{where!r} has a prefix that is not safe as a name",
                advice="letters, digits, dots, dashes, underscores, and / between them",
            )
        return cls(scheme, bucket, prefix)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


def client_settings(scheme: str, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What the environment says of the connection itself.

    Raises BadRequest for an endpoint in plain HTTP that nobody allowed (AWS_ALLOW_HTTP), or a
    bundle of authorities (AWS_CA_BUNDLE) that cannot be read.
    """
    if scheme != "s3":
        return {}
    allowed = environment.get(ALLOW_HTTP, "").lower() in ("1", "true", "yes", "on")
    for name in ENDPOINTS:
        if environment.get(name, "").lower().startswith("http://") and not allowed:
            raise BadRequest(
                f"{name} is {environment[name]}: images would go over the network in plain text",
                advice=f"an https:// endpoint, or {ALLOW_HTTP}=true where that network is yours",
            )
    settings: dict[str, Any] = {"allow_http": allowed}
    if bundle := environment.get(CA_BUNDLE):
        try:
            settings["root_certificate"] = Path(bundle).read_bytes()
        except OSError as error:
            raise BadRequest(f"{CA_BUNDLE}: cannot read {bundle}: {error.strerror}") from error
    return settings
