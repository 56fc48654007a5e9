"""Which notices a shim watches."""

from __future__ import annotations

from collections.abc import Sequence

from worker_shim.preemption import aws, azure, gcp
from worker_shim.preemption.metadata import Metadata
from worker_shim.preemption.watching import Ears, Heard, Source

CLOUDS = ("aws", "azure", "gcp")
_URLS = {"aws": aws.URL, "azure": azure.URL, "gcp": gcp.URL}


def sources_of(cloud: str, url: str, ears: Ears, *, gpus: bool) -> Sequence[Source]:
    """What is to be watched of a cloud, at `url` or where that cloud has it; none for no cloud.

    `gpus`: this machine has some. Nothing is asked yet. Raises BadRequest.
    """
    if not cloud:
        return ()
    metadata, heard = Metadata(url or _URLS[cloud]), Heard(ears)
    if cloud == "aws":
        return (aws.Spot(metadata, heard),)
    if cloud == "azure":
        return (azure.ScheduledEvents(metadata, heard),)
    return gcp.keys(metadata, heard, gpus=gpus)
