"""The Debian package, installed, upgraded and purged by dpkg: in a copy of this system's files that goes afterwards."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemon import environment

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ISOLATED = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private")

# $1: an empty folder. The root of this machine below, what is written above it, and processes and network of its own.
ENTER = """
mount -t tmpfs tmpfs "$1"
mkdir "$1/above" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/above,workdir=$1/work" "$1/root"
mount --rbind /dev "$1/root/dev"
mount -t proc proc "$1/root/proc"
ip link set lo up
"""

# What an operator does. It runs in the copy; each line that begins with "told" is looked at below.
OPERATE = """
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH DEBIAN_FRONTEND=noninteractive
serve() {
    setpriv --reuid canopy --regid canopy --clear-groups \\
        canopy serve --config /etc/canopy/canopy.toml 2>/tmp/broker.log &
    broker=$!
    until canopy health --target "mqtt://127.0.0.1:$1" >/dev/null 2>&1; do kill -0 $broker; done
}
leave() {
    kill $broker
    wait $broker
}
dpkg -i "$2" >/dev/null
echo "told user $(getent passwd canopy | cut -d: -f6,7)"
echo "told store $(stat -c '%U %a' /var/lib/canopy)"
echo "told unit $(systemctl --root=/ is-enabled canopy.service)"
echo "told verified $(systemd-analyze verify --man=no canopy.service 2>&1)"
echo "told version $(canopy --version)"
canopy check-config /etc/canopy/canopy.toml >/dev/null
serve 1883
mosquitto_pub -q 1 -r -t site/7/temperature -m 21.5
leave

sed -i s/:1883/:1884/ /etc/canopy/canopy.toml
dpkg -i "$3" >/dev/null
echo "told upgraded $(dpkg-query --show --showformat '${Version}' canopy-mqtt)"
serve 1884
echo "told kept $(mosquitto_sub -p 1884 -t site/7/temperature -C 1 -W 60)"
leave

dpkg -r canopy-mqtt >/dev/null
echo "told removed $(ls -d /etc/canopy /var/lib/canopy /usr/bin/canopy /usr/lib/canopy-mqtt 2>/dev/null | xargs)"
dpkg -P canopy-mqtt >/dev/null
echo "told purged $(getent passwd canopy)$(getent group canopy)"
"""


@pytest.fixture(scope="module")
def package(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the interpreted wheel: nothing here is about the compiler."""
    for command in ("dpkg-deb", "strip", "/usr/bin/python3"):
        if shutil.which(command) is None:
            pytest.skip(f"no {command}")
    output = tmp_path_factory.mktemp("debian")
    build = (sys.executable, "-m", "tools.debian_package", "--wheel", str(wheel), "--output", str(output))
    built = subprocess.run(build, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (package,) = output.glob("canopy-mqtt_*.deb")
    assert built.stdout.strip() == str(package)
    return package


def next_version(package: Path, folder: Path) -> Path:
    """The same package as a later version."""
    tree = folder / "tree"
    subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
    control = tree / "DEBIAN" / "control"
    control.write_text(re.sub(r"^Version: .+$", "Version: 99.0", control.read_text(), flags=re.MULTILINE))
    later = folder / "later.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, later], check=True, capture_output=True
    )
    shutil.rmtree(tree)
    return later


def test_installed_upgraded_and_purged(package: Path, tmp_path: Path) -> None:
    """A user for the service, who owns the store; an upgrade keeps settings and store, and a purge leaves nothing."""
    for command in ("unshare", "ip", "setpriv", "systemd-analyze", "mosquitto_pub", "mosquitto_sub"):
        if shutil.which(command) is None:
            pytest.skip(f"no {command}")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    isolated = ISOLATED if os.geteuid() == 0 else ("sudo", "-n", *ISOLATED)
    tried = (*isolated, "sh", "-eu", "-c", ENTER, "sh", str(mounted))
    if shutil.which(isolated[0]) is None or subprocess.run(tried, capture_output=True, check=False).returncode:
        pytest.skip("needs root, or sudo without a password, and a kernel that mounts an overlay of the root")
    later = next_version(package, tmp_path)
    # What is new above the root at the end, but for what dpkg keeps about itself.
    left = 'find "$1/above" -path "*/dpkg*" -prune -o -iname "*canopy*" -print | sed "s/^/left /"'
    script = f'{ENTER}\nchroot "$1/root" sh -eu -c "$4" sh "$2" "$2" "$3"\n{left}'
    done = subprocess.run(
        [*isolated, "sh", "-eu", "-c", script, "sh", mounted, package, later, OPERATE],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    told = dict(rest.partition(" ")[::2] for word, _, rest in lines if word == "told")
    assert told.pop("version").startswith("canopy 0.")
    assert told == {
        "user": "/var/lib/canopy:/usr/sbin/nologin",
        "store": "canopy 700",
        "unit": "enabled",
        # systemd says nothing of what is right.
        "verified": "",
        "upgraded": "99.0",
        "kept": "21.5",
        "removed": "/etc/canopy /var/lib/canopy",
        "purged": "",
    }
    assert [rest for word, _, rest in lines if word == "left"] == []


def test_lintian_finds_no_error(package: Path) -> None:
    if shutil.which("lintian") is None:
        pytest.skip("no lintian")
    # Warnings of a compiled core that is not in this package would be overrides without effect.
    found = subprocess.run(
        ["lintian", "--allow-root", "--tag-display-limit", "0", package], capture_output=True, text=True, check=False
    )
    assert [line for line in found.stdout.splitlines() if line.startswith("E:")] == []
