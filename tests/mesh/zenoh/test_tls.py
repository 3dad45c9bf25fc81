"""Nodes that prove to each other who they are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.mesh.zenoh.nodes import Node, running, together
from tests.support.certificates import Authority
from tests.support.ports import free_port


def tls(authority: Authority, certificate: tuple[str, str]) -> dict[str, Any]:
    return {"ca_file": authority.file, "cert_file": certificate[0], "key_file": certificate[1]}


async def test_nodes_with_certificates_of_one_authority_are_one_mesh(tmp_path: Path) -> None:
    """Also where they find each other by an address that no certificate names."""
    authority = Authority(tmp_path)
    ports = [free_port() for _ in range(3)]
    nodes = [
        Node(
            name,
            listen=[f"tls/127.0.0.1:{port}"],
            connect=[f"tls/127.0.0.1:{ports[0]}"] if name != "a" else [],
            **tls(authority, authority.issue(f"{name}.example")),
        )
        for name, port in zip("abc", ports, strict=True)
    ]
    async with together(*nodes):
        nodes[1].send("c", b"secret")
        await nodes[2].hears(1)
        assert nodes[2].messages == [b"secret"]


@pytest.mark.parametrize("who", ["a certificate of another authority", "no certificate"])
async def test_a_node_without_a_right_certificate_is_refused(tmp_path: Path, who: str) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    port = free_port()
    place = f"tls/127.0.0.1:{port}"
    a = Node("a", listen=[place], **tls(authority, authority.issue("a.example")))
    b = Node("b", connect=[place], **tls(authority, authority.issue("b.example")))
    # It trusts the mesh, and is none of it.
    wrong = tls(authority, other.issue("c.example"))
    settings = {"connect": [f"tcp/127.0.0.1:{port}"]} if who == "no certificate" else {"connect": [place], **wrong}
    c = Node("c", **settings)
    async with running(a, c):
        async with running(b):
            await a.sees("b")
            await asyncio.sleep(0.5)
            assert a.bus.nodes() == ["b"]
        assert c.bus.nodes() == []
        assert c.events == []


async def test_a_node_does_not_trust_one_of_another_authority(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    certificate = authority.issue("a.example")
    place = f"tls/127.0.0.1:{free_port()}"
    a = Node("a", listen=[place], **tls(authority, certificate))
    # Its certificate is right, and it asks for one of the other authority.
    b = Node("b", connect=[place], **tls(other, authority.issue("b.example")))
    async with running(a, b):
        await asyncio.sleep(0.5)
        assert a.bus.nodes() == b.bus.nodes() == []
