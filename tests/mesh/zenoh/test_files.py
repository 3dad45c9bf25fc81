"""What is wrong with the files of a mesh, in one line that names the setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.mesh import joining
from broker.mesh.joining import unusable
from broker.settings import Mesh
from tests.support.certificates import Authority


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (certificate, key), (_, other) = authority.issue("one"), authority.issue("other")
    mesh = Mesh(name="m", listen=("tls/127.0.0.1:0",), ca_file=authority.file, cert_file=certificate, key_file=key)
    assert unusable(mesh) == []
    wrong = mesh.model_copy(update={"key_file": other})
    assert unusable(wrong) == [f"mesh.key_file {other}: not the private key to the certificate in {certificate}"]
    (line,) = unusable(mesh.model_copy(update={"ca_file": f"{tmp_path}/none"}))
    assert line == f"mesh.ca_file {tmp_path}/none: No such file or directory"


def test_a_mesh_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "find_spec", lambda _: None)
    assert unusable(Mesh(name="m")) == ['mesh.name needs the extra `mesh`: in a clone of Canopy, pip install ".[mesh]"']
