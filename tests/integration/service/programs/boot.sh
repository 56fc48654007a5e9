#!/bin/bash
# The first half of a machine's start, as PID 1 of its own PID, mount and cgroup namespaces: mounts,
# /etc and the users; then systemd takes this process over.
#
#   boot.sh DISK SHARED SOURCE PYTHON SITE UNITS
#
# DISK      a directory of this machine's own: what becomes of /etc/allstop and /var/lib/allstop
# SHARED    seen by all machines, at /srv/shared
# SOURCE    this working tree, at /opt/allstop/source
# PYTHON    the installation that tests run by, at /opt/allstop/python
# SITE      its packages, at /opt/allstop/site
# UNITS     further units, copied to /etc/systemd/system
set -euo pipefail
disk=$1 shared=$2 source=$3 python=$4 site=$5 units=$6

read -r pid _ </proc/self/stat # as the namespace outside numbers it, whose /proc this still is
echo "$pid" >"$disk/init.pid"

mount --make-rprivate /
mount -t proc -o nosuid,nodev,noexec proc /proc
mount --bind /proc/sys /proc/sys # the kernel's settings are the outside's: systemd is not to raise any
mount -o remount,bind,ro /proc/sys
mount -t sysfs -o nosuid,nodev,noexec,ro sysfs /sys
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 /sys/fs/cgroup

# Everything of the outside is bound where it belongs before /tmp is hidden, where it may lie.
mount -t tmpfs -o mode=755 tmpfs /srv
mount -t tmpfs -o mode=755 tmpfs /opt
mkdir -p /srv/shared /srv/disk /opt/allstop/{source,python,site}
mount --bind "$disk" /srv/disk
mount --bind "$shared" /srv/shared
mount --bind "$source" /opt/allstop/source
mount --bind "$python" /opt/allstop/python
mount --bind "$site" /opt/allstop/site

mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/over/{etc,local}.{upper,work}
mount -t overlay -o lowerdir=/etc,upperdir=/run/over/etc.upper,workdir=/run/over/etc.work overlay /etc
mount -t overlay -o lowerdir=/usr/local/bin,upperdir=/run/over/local.upper,workdir=/run/over/local.work \
    overlay /usr/local/bin

# Of the system's own units only those that touch nothing but this machine: no sysctl, no udev, no fsck.
mkdir -p /run/units /run/none
for unit in systemd-journald{.service,.socket,-dev-log.socket} \
    {basic,sysinit,sockets,network,network-online,multi-user,shutdown}.target; do
    cp "/usr/lib/systemd/system/$unit" /run/units/
done
mount --bind /run/units /usr/lib/systemd/system
mount --bind /run/none /usr/lib/systemd/system-generators

rm -rf /etc/systemd/system /etc/sysusers.d /etc/tmpfiles.d
mkdir -p /etc/systemd/system /etc/sysusers.d /etc/tmpfiles.d /srv/disk/var /var/lib/allstop
cp "$source"/deploy/systemd/*.service "$units"/* /etc/systemd/system/
cp "$source"/deploy/systemd/sysusers.d/allstop.conf /etc/sysusers.d/
cp "$source"/deploy/systemd/tmpfiles.d/allstop.conf /etc/tmpfiles.d/
systemd-sysusers allstop.conf
mount --bind /srv/disk/var /var/lib/allstop
systemd-tmpfiles --create allstop.conf
cp -r "$disk"/etc/. /etc/allstop/
: >/etc/machine-id
hostname >/etc/hostname
printf '[Journal]\nReadKMsg=no\nStorage=volatile\n' >/etc/systemd/journald.conf

cat >/usr/local/bin/allstop <<END
#!/bin/sh
# This machine's PID namespace counts as the first one, as it would where systemd really is PID 1.
export PYTHONPATH=/opt/allstop/source:/opt/allstop/source/proto:/opt/allstop/site PYTHONDONTWRITEBYTECODE=1
export LD_LIBRARY_PATH=/opt/allstop/python/lib # its own libpython, should it have one
exec /opt/allstop/python/bin/python3 -P /opt/allstop/source/tests/support/first_namespace.py \
    $(stat -L -c %i /proc/self/ns/pid) "\$@"
END
chmod 755 /usr/local/bin/allstop

mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /var/tmp
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=allstop \
    /lib/systemd/systemd --unit=machine.target --log-target=journal --show-status=no
