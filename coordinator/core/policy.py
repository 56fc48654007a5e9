"""How long each phase may take, and how many things may be kept: data, no behaviour.

Every wait of the core has its number here. The rule that ties them together: the dead-man timer
that an order carries is the phase's deadline plus `margin_s`, so a shim never gives up before the
coordinator has stopped waiting for it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from coordinator.core.errors import BadRequest


@dataclass(frozen=True)
class Policy:
    """Deadlines in seconds and limits in counts; every one must be positive."""

    # checkpoint
    attempt_s: float = 600.0  # the whole attempt, where the request names no deadline
    admit_s: float = 10.0
    hold_s: float = 10.0
    park_s: float = 60.0  # a step may be long
    gpu_lock_s: float = 30.0
    gpu_save_s: float = 120.0
    dump_s: float = 120.0
    resume_s: float = 60.0
    persist_s: float = 600.0
    commit_s: float = 10.0
    stop_s: float = 30.0
    undo_s: float = 30.0
    adopt_s: float = 30.0  # for nodes to attach to a new leader that undoes an attempt
    margin_s: float = 5.0  # by which a dead-man timer outlives its phase

    # restore
    restore_s: float = 900.0  # the whole restore, where the request names no deadline
    fetch_s: float = 600.0
    clear_s: float = 60.0
    rebuild_s: float = 180.0  # RESTORE, the phase
    gpu_restore_s: float = 180.0
    gpu_unlock_s: float = 30.0
    release_s: float = 30.0

    # cleaning of image stores
    clean_list_s: float = 120.0
    clean_collect_s: float = 3600.0
    clean_again_s: float = 5.0  # until a cleaning that met trouble tries again, then twice as long
    clean_again_max_s: float = 300.0
    hung_s: float = 30.0  # without a step: less is no hang, however quick the job's steps are
    retain_s: float = 600.0  # between two looks whether a job's retention lets go of something

    # limits
    journal_limit: int = 4096  # decisions kept
    ended_limit: int = 256  # attempts and restores kept after their end
    lost_limit: int = 1024  # nodes kept after they were lost or left

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise BadRequest(f"policy: {field.name} must be positive", advice="correct it")

    @property
    def stand_still_s(self) -> float:
        """How long ranks may stand still for a checkpoint: parked, saved, and let go or undone."""
        saved_s = self.park_s + self.gpu_lock_s + self.gpu_save_s + self.dump_s
        return saved_s + max(self.resume_s, self.undo_s)

    def with_devices(self) -> Policy:
        """For workers with state on devices.

        Whoever lets them go puts device memory back first; whoever kills them may have to take
        them off their devices before.
        """
        back_s, off_s = self.gpu_restore_s + self.gpu_unlock_s, self.gpu_lock_s + self.gpu_save_s
        return replace(
            self,
            undo_s=self.undo_s + max(back_s, off_s),
            resume_s=self.resume_s + back_s,
            stop_s=self.stop_s + off_s,
            clear_s=self.clear_s + off_s,
        )
