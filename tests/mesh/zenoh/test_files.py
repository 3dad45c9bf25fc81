"""What is wrong with the files of a mesh, in one line that names the setting."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from broker.mesh import joining
from broker.mesh.joining import suspicious, unusable
from broker.mesh.zenoh.files import expires
from broker.settings import Mesh
from tests.docs.blocks import BLOCKS
from tests.support.certificates import DAY, Authority, now


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (certificate, key), (_, other) = authority.issue("one"), authority.issue("other")
    mesh = Mesh(name="m", listen=("tls/127.0.0.1:0",), ca_file=authority.file, cert_file=certificate, key_file=key)
    assert unusable(mesh) == []
    wrong = mesh.model_copy(update={"key_file": other})
    assert unusable(wrong) == [f"mesh.key_file {other}: not the private key to the certificate in {certificate}"]
    absent = mesh.model_copy(update={"ca_file": f"{tmp_path}/none"})
    assert unusable(absent) == [f"mesh.ca_file {tmp_path}/none: No such file or directory"]
    assert suspicious(absent) == []


def node(authority: str, certificate: tuple[str, str]) -> Mesh:
    return Mesh(
        name="m", listen=("tls/127.0.0.1:0",), ca_file=authority, cert_file=certificate[0], key_file=certificate[1]
    )


def test_a_certificate_that_another_authority_has_signed(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    wrong = other.issue("a")
    assert suspicious(node(authority.file, authority.issue("a"))) == []
    (line,) = suspicious(node(authority.file, wrong))
    assert line.startswith(f"mesh.cert_file {wrong[0]}: no authority in mesh.ca_file {authority.file} has signed it")


def test_a_certificate_that_has_expired(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    end = now() - DAY
    mesh = node(authority.file, authority.issue("a", not_after=end))
    (line,) = suspicious(mesh)
    assert line.endswith(f"other nodes refuse this certificate, because it expired on {end:%Y-%m-%d}")
    assert expires(mesh) == {mesh.cert_file: int(end.timestamp())}


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that docs/cluster.md shows, in whose folder the test is."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    monkeypatch.chdir(tmp_path)
    (block,) = (each for each in BLOCKS if each.page == "cluster" and each.text.startswith("openssl"))
    return [line.split() for line in block.text.splitlines()]


def test_certificates_made_as_the_page_shows_are_good(shown: list[list[str]]) -> None:
    for command in shown:
        subprocess.run(command, check=True, capture_output=True)
    mesh = node("mesh-ca.pem", ("mesh-a.pem", "mesh-a.key"))
    assert unusable(mesh) == suspicious(mesh) == []
    (line,) = suspicious(node("mesh-ca.pem", ("mesh-ca.pem", "mesh-ca.key")))
    assert line.startswith("mesh.cert_file mesh-ca.pem: other nodes refuse this certificate, because it is an")


@pytest.mark.parametrize(
    ("extensions", "why"),
    [
        ([], "because its version is 1"),
        (["extendedKeyUsage=serverAuth"], "because its extended key usage lacks clientAuth"),
        (["extendedKeyUsage=clientAuth"], "because its extended key usage lacks serverAuth"),
        (["extendedKeyUsage=serverAuth,clientAuth"], ""),
    ],
)
def test_certificates_that_zenoh_refuses(shown: list[list[str]], extensions: list[str], why: str) -> None:
    Path("extensions").write_text("\n".join(extensions), encoding="utf-8")
    authority, request, sign = shown
    at = sign.index("-copy_extensions")
    sign[at : at + 2] = ["-extfile", "extensions"] if extensions else []
    for command in (authority, request, sign):
        subprocess.run(command, check=True, capture_output=True)
    lines = suspicious(node("mesh-ca.pem", ("mesh-a.pem", "mesh-a.key")))
    assert [why in line for line in lines] == [True] * bool(why)


def test_a_mesh_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "find_spec", lambda _: None)
    assert unusable(Mesh(name="m")) == ['mesh.name needs the extra `mesh`: in a clone of Canopy, pip install ".[mesh]"']
