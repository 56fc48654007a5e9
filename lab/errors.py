"""What can go wrong with a lab.

LabError
├── LabUnavailable   this machine or this user cannot make one; the message says what is missing
├── HostGone         the host was powered off, or died
└── CommandFailed    a command run in a host failed or took too long
"""


class LabError(Exception):
    """A lab could not do what it was asked to."""


class LabUnavailable(LabError):
    """No lab can be made here: not Linux, not root, or namespaces are forbidden."""


class HostGone(LabError):
    """The host has no process left, so nothing can run in it."""


class CommandFailed(LabError):
    """A command in a host ended badly; the message holds its last words."""
