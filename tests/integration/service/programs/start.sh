#!/bin/bash
# Runs boot.sh as PID 1 of a machine in a cgroup of its own, and takes that away when it has ended.
set -euo pipefail
tree=$(mktemp -d /run/cgroup.XXXXXX)
mount -t cgroup2 cgroup2 "$tree"
own=$(mktemp -d "$tree$(sed -n 's/^0:://p' /proc/self/cgroup)/allstop-test.XXXXXX")
(
    echo "$BASHPID" >"$own/cgroup.procs"
    exec unshare --pid --fork --kill-child --mount --ipc --uts --cgroup "$(dirname "$0")/boot.sh" "$@"
) &
wait "$!" || true
find "$own" -depth -type d -exec rmdir {} +
