"""Spans go out by OTLP where the standard OTEL_* variables say so; without them nothing does.

The exporters read endpoint, headers, certificates, compression and time-out from the environment
themselves; here it is only decided whether there is one, and of which kind.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence

import structlog
from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from coordinator.core.errors import BadRequest
from coordinator.telemetry.spans import Span
from coordinator.telemetry.version import own_version

log = structlog.get_logger(__name__)

FLUSH_S = 5.0  # at the end of the process
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
SCOPE = "allstop"


def chosen_by(environment: Mapping[str, str]) -> SpanExporter | None:
    """The exporter that the OTEL_* variables ask for; None: none, which is the default.

    OTEL_TRACES_EXPORTER (otlp, console, none) counts first, then whether there is an OTLP endpoint.
    Raises BadRequest naming the variable for a kind that is not known.
    """
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    kind = environment.get("OTEL_TRACES_EXPORTER", "")
    if not kind:
        kind = "otlp" if any(environment.get(name) for name in ENDPOINTS) else "none"
    if kind == "none":
        return None
    if kind == "console":
        return ConsoleSpanExporter()
    if kind != "otlp":
        raise BadRequest(
            f"OTEL_TRACES_EXPORTER is {kind!r}", advice="there are: otlp, console and none"
        )
    protocol = next((environment[name] for name in PROTOCOLS if environment.get(name)), "")
    if protocol in ("", "http/protobuf"):  # what OpenTelemetry says to be the default
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

        return Http()
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        return Grpc()
    raise BadRequest(
        f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}", advice="there are: grpc and http/protobuf"
    )


class _ChosenIds(IdGenerator):
    """Gives out the ids that were chosen for the next span."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self.trace = 0
        self.span = 0

    def generate_trace_id(self) -> int:
        return self.trace or self._random.generate_trace_id()

    def generate_span_id(self) -> int:
        return self.span or self._random.generate_span_id()


class Exporter:
    """Sends finished spans; used on one loop, never waits. Whatever fails is logged by the SDK."""

    def __init__(
        self, service: str, instance: str, spans: SpanExporter, *, attributes: Mapping[str, str]
    ) -> None:
        """`service` and `instance` are told unless OTEL_SERVICE_NAME and the like say otherwise."""
        told = {
            "service.name": os.environ.get("OTEL_SERVICE_NAME", service),
            "service.namespace": "allstop",
            "service.version": own_version(),
            "service.instance.id": instance,
            "host.name": socket.gethostname(),
        }
        self._ids = _ChosenIds()
        self._provider = TracerProvider(
            resource=Resource.create({**told, **attributes}),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(spans))
        self._tracer = self._provider.get_tracer(SCOPE, own_version())

    def send(self, trace: int, began_unix_s: float, spans: Sequence[Span]) -> None:
        """Queue these spans of one trace."""
        for span in spans:
            self._ids.trace, self._ids.span = trace, span.identity
            made = self._tracer.start_span(
                span.name,
                context=_below(trace, span.parent),
                kind=otel.SpanKind.INTERNAL,
                attributes=dict(span.attributes),
                start_time=_ns(began_unix_s, span.began_ms),
            )
            for moment in span.moments:
                at = _ns(began_unix_s, moment.at_ms)
                made.add_event(moment.name, dict(moment.attributes), at)
            if span.failed:
                made.set_status(Status(StatusCode.ERROR, span.failed))
            made.end(_ns(began_unix_s, span.ended_ms))
        self._ids.trace = self._ids.span = 0

    async def close(self) -> None:
        """Send what is queued, for FLUSH_S at most."""
        try:
            async with asyncio.timeout(FLUSH_S + 1.0):
                await asyncio.to_thread(self._provider.force_flush, int(FLUSH_S * 1000))
                await asyncio.to_thread(self._provider.shutdown)
        except TimeoutError:
            log.warning("traces were not all sent", advice="is the OTLP endpoint well?")


def _below(trace: int, parent: int) -> Context:
    """A context whose span is somebody else's; without `parent` one without a span."""
    if not parent:
        return Context()
    flags = TraceFlags(TraceFlags.SAMPLED)
    remote = SpanContext(trace, parent, is_remote=True, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(remote), Context())


def _ns(began_unix_s: float, after_ms: float) -> int:
    return round(began_unix_s * 1e9) + round(after_ms * 1e6)
