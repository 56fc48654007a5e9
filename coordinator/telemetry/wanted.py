"""Whether anybody wants spans; OpenTelemetry's SDK is only loaded where somebody does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.telemetry.export import Exporter


def exporter_wanted(service: str, instance: str, **attributes: str) -> Exporter | None:
    """What the OTEL_* variables ask for; None where they ask for nothing. Raises BadRequest."""
    if not any(name.startswith("OTEL_") for name in os.environ):
        return None
    from coordinator.telemetry.export import Exporter, chosen_by

    spans = chosen_by(os.environ)
    return Exporter(service, instance, spans, attributes=attributes) if spans is not None else None
