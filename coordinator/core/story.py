"""What is kept of a job's recovery, with a line for each thing that was done or decided."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from coordinator.core.job_policy import JobRecovery, StoryLine

STORY_LINES = 100


@dataclass
class Story:
    """A record that is changed by being replaced; `unix_s` of its lines is for people alone."""

    record: JobRecovery  # outlives the leader
    changed: bool = field(default=False, kw_only=True)  # the record is to be kept
    unix_less_now: float = field(default=0.0, kw_only=True)

    def saw(self, what: str, now: float) -> None:
        """Tell a line."""
        line = StoryLine(max(0.0, self.unix_less_now + now), what)
        self.keep(story=(*self.record.story, line)[-STORY_LINES:])

    def keep(self, **fields: object) -> None:
        """Change fields of the record."""
        self.put(replace(self.record, **fields))  # type: ignore[arg-type]

    def put(self, record: JobRecovery) -> None:
        """Put another record in its place."""
        self.changed = self.changed or record != self.record
        self.record = record
