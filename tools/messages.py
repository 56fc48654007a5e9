"""What to tell a person whose machine lacks something that cannot be fetched for them."""

from collections.abc import Sequence

# For each thing: what it is for, and the package that holds it, per package manager.
PACKAGES = {
    "criu >= 4.2": ("criu", "criu", "criu", "criu", "criu"),
    "etcd >= 3.5": ("etcd-server etcd-client", "etcd", "etcd etcdctl", "etcd", "etcd etcd-ctl"),
    "nft": ("nftables", "nftables", "nftables", "nftables", "nftables"),
    "ip": ("iproute2", "iproute", "iproute2", "iproute2", "iproute2"),
    "ss": ("iproute2", "iproute", "iproute2", "iproute2", "iproute2"),
    "python venv": ("python3-venv", "python3", "python3", "python", "py3-pip python3"),
}
MANAGERS = ("apt-get install", "dnf install", "zypper install", "pacman -S", "apk add")
DISTRIBUTIONS = {
    "debian": 0,
    "ubuntu": 0,
    "fedora": 1,
    "rhel": 1,
    "centos": 1,
    "suse": 2,
    "opensuse": 2,
    "opensuse-tumbleweed": 2,
    "opensuse-leap": 2,
    "arch": 3,
    "alpine": 4,
}


class Missing(Exception):
    """Something is missing, and the message says what, and how to get it."""


def how_to_install(names: Sequence[str], distribution_ids: Sequence[str]) -> Missing:
    """Name each missing thing and the command that installs it on this distribution.

    `distribution_ids`: `ID` and then `ID_LIKE` of os-release, nearest first. An unknown
    distribution gets the commands of all package managers.
    """
    known = [DISTRIBUTIONS[name] for name in distribution_ids if name in DISTRIBUTIONS]
    columns = known[:1] or list(range(len(MANAGERS)))
    lines = ["allstop needs, and this machine lacks: " + ", ".join(names)]
    for column in columns:
        packages: list[str] = []
        for name in names:
            packages += [p for p in PACKAGES[name][column].split() if p not in packages]
        lines.append(f"  {MANAGERS[column]} {' '.join(packages)}")
    if "criu >= 4.2" in names:
        lines.append(
            "  (kernels from 6.16 on need CRIU 4.2 or newer; where the distribution's is older,"
            "\n   build it from source and put `criu` on the PATH)"
        )
    if "etcd >= 3.5" in names:
        lines.append("  (etcd's own release archives work too: `etcd` and `etcdctl` on the PATH)")
    return Missing("\n".join(lines))
