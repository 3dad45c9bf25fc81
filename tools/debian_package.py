"""Builds the Debian package `canopy-mqtt`: the broker as a service, with the libraries that it uses.

    python -m tools.debian_package --output dist                    # builds the wheel first, compiled
    python -m tools.debian_package --output dist --wheel FILE.whl   # of this wheel

It runs on the Debian or Ubuntu that the package is for, because the libraries are those for its `python3`. They are the
versions of uv.lock, checked by their hashes, in a folder that no other package uses. `config/debian` has the control
file, the scripts and the settings; the unit is `config/canopy.service`, with the user and the command of the package.
Needs uv and dpkg-deb. Prints the name of the package.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import tempfile
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Final

from tools.programs import ROOT, fail, need, run, uv

FILES: Final = ROOT / "config" / "debian"
PYTHON: Final = "/usr/bin/python3"
NAME: Final = "canopy-mqtt"
LIBRARIES: Final = f"usr/lib/{NAME}"
EXTRAS: Final = ("postgresql",)
SCRIPTS: Final = ("postinst", "prerm", "postrm")


def put(source: Path, target: Path, mode: int = 0o644) -> None:
    """Copy a file, with its folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def install_libraries(folder: Path, wheel: Path) -> None:
    """Install the locked libraries and the wheel into a folder, for the Python of the system."""
    with tempfile.TemporaryDirectory() as scratch:
        locked = Path(scratch) / "requirements.txt"
        extras = [argument for extra in EXTRAS for argument in ("--extra", extra)]
        export = ("export", "--quiet", "--frozen", "--no-emit-project", "--no-default-groups")
        run(uv(), *export, *extras, "--output-file", str(locked))
        # Copies: what is stripped below would else change in uv's cache, and in each environment that shares its files.
        target = ("pip", "install", "--quiet", "--python", PYTHON, "--link-mode", "copy", "--target", str(folder))
        run(uv(), *target, "--require-hashes", "--requirement", str(locked))
        run(uv(), *target, "--no-deps", str(wheel))
    shutil.rmtree(folder / "bin")
    # These name the machine that built the package.
    for name in ("direct_url.json", "uv_cache.json"):
        for file in folder.glob(f"*.dist-info/{name}"):
            file.unlink()
    (folder / ".lock").unlink(missing_ok=True)


def strip_symbols(folder: Path) -> None:
    """Remove the symbols that only debuggers use. Libraries that a wheel carries for others (`*.libs`) stay as they
    are: their tables were moved when the wheel was made, which strip does not expect."""
    files = [str(file) for file in folder.rglob("*.so") if not file.parent.name.endswith(".libs")]
    run("strip", "--strip-unneeded", "--remove-section=.comment", "--remove-section=.note", *files)


def write_unit(target: Path) -> None:
    """Write the unit, which runs the command of the package as its user, who owns the settings' secrets as well."""
    text = (ROOT / "config" / "canopy.service").read_text(encoding="utf-8")
    text = text[text.index("[Unit]") :]
    for pattern, replacement in (
        (r"^ExecStart=\S+", "ExecStart=/usr/bin/canopy"),
        (r"^DynamicUser=yes\n#SupplementaryGroups=canopy\n", "User=canopy\nGroup=canopy\n"),
    ):
        text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        if count != 1:
            fail(f"config/canopy.service has not one line for {pattern}")
    target.parent.mkdir(parents=True)
    target.write_text(text, encoding="utf-8")


def write_documents(folder: Path, version: str) -> None:
    """Write the copyright and a changelog that names the version."""
    put(FILES / "copyright", folder / "copyright")
    released = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", datetime.now(UTC).timestamp())), UTC)
    entry = (
        f"{NAME} ({version}) stable; urgency=medium\n\n"
        f"  * Version {version}: see CHANGELOG.md of the project.\n\n"
        f" -- Canopy contributors <canopy@localhost>  {format_datetime(released)}\n"
    )
    packed = gzip.compress(entry.encode(), 9, mtime=0)
    (folder / "changelog.gz").write_bytes(packed)


def write_control(root: Path, version: str, architecture: str) -> None:
    """Write the package's control files: what dpkg knows of it, and what it runs."""
    files = sorted(file for file in root.rglob("*") if file.is_file())
    python = run(PYTHON, "-c", "import sys; print(sys.version_info.minor)").strip()
    control = root / "DEBIAN"
    control.mkdir()
    sums = [f"{hashlib.md5(file.read_bytes()).hexdigest()}  {file.relative_to(root)}\n" for file in files]
    (control / "md5sums").write_text("".join(sums), encoding="utf-8")
    (control / "control").write_text(
        (FILES / "control")
        .read_text(encoding="utf-8")
        .format(
            version=version,
            architecture=architecture,
            installed_size=-(-sum(file.stat().st_size for file in files) // 1024),
            python=f"3.{python}",
            next_python=f"3.{int(python) + 1}",
        ),
        encoding="utf-8",
    )
    (control / "conffiles").write_text("/etc/canopy/canopy.toml\n", encoding="utf-8")
    for name in SCRIPTS:
        put(FILES / name, control / name, 0o755)


def build(wheel: Path, output: Path) -> Path:
    """Build the package of a wheel, and return its file."""
    version = wheel.name.split("-")[1]
    architecture = run("dpkg", "--print-architecture").strip()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        root.mkdir(mode=0o755)
        libraries = root / LIBRARIES
        libraries.mkdir(parents=True)
        install_libraries(libraries, wheel)
        strip_symbols(libraries)
        put(FILES / "canopy", root / "usr/bin/canopy", 0o755)
        put(FILES / "canopy.toml", root / "etc/canopy/canopy.toml")
        put(ROOT / "config/default.toml", root / f"usr/share/doc/{NAME}/default.toml")
        manual = root / "usr/share/man/man1/canopy.1.gz"
        manual.parent.mkdir(parents=True)
        manual.write_bytes(gzip.compress((FILES / "canopy.1").read_bytes(), 9, mtime=0))
        put(FILES / "lintian-overrides", root / f"usr/share/lintian/overrides/{NAME}")
        write_unit(root / "lib/systemd/system/canopy.service")
        write_documents(root / f"usr/share/doc/{NAME}", version)
        for each in root.rglob("*"):
            if not each.is_symlink():
                # What pip made may have the builder's umask.
                each.chmod(0o755 if each.is_dir() or os.access(each, os.X_OK) else 0o644)
        write_control(root, version, architecture)
        output.mkdir(parents=True, exist_ok=True)
        package = output / f"{NAME}_{version}_{architecture}.deb"
        run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(package))
    return package


def build_wheel(into: Path) -> Path:
    """Build the wheel, compiled, for the Python of the system."""
    run(uv(), "build", "--quiet", "--wheel", "--python", PYTHON, "--out-dir", str(into), CANOPY_REQUIRE_COMPILED="1")
    (wheel,) = into.glob("*.whl")
    return wheel


def main() -> None:
    """Read the command line, and build."""
    parser = argparse.ArgumentParser(description="Builds the Debian package canopy-mqtt.")
    parser.add_argument("--output", type=Path, default=Path("dist"), help="the folder for the package")
    parser.add_argument("--wheel", type=Path, help="a wheel of Canopy, instead of a new one, compiled")
    options = parser.parse_args()
    for command in ("dpkg", "dpkg-deb", "strip", PYTHON):
        need(command, "a Debian package is built on Debian or Ubuntu")
    with tempfile.TemporaryDirectory() as scratch:
        wheel = options.wheel or build_wheel(Path(scratch))
        print(build(wheel.resolve(), options.output.resolve()))


if __name__ == "__main__":
    main()
