"""Several hosts on one machine, of which nothing outlives its owner: for demo, tests and bench."""

from lab.cluster import Lab
from lab.errors import CommandFailed, HostGone, LabError, LabUnavailable
from lab.host import DISK, Host

__all__ = ["DISK", "CommandFailed", "Host", "HostGone", "Lab", "LabError", "LabUnavailable"]
