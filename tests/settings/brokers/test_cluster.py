"""`[cluster]`: what it holds, and a line for each mistake, with the key and what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from canopy_mqtt.cluster.listener import listener_settings
from canopy_mqtt.cluster.node_link import upstream_of
from canopy_mqtt.settings import Cluster, ClusterNode, Settings
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.loader import load_settings
from tests.support.runs import for_each

FORMS: Final = "mqtts://HOST[:PORT], or mqtt+unix:///PATH on one machine"
A_NAME: Final = '1 to 64 letters, digits, "_" and "-", like '
REACHED: Final = "where the other nodes reach this one, with cluster.name: "
PLAIN: Final = "; plain mqtt:// only on this machine, like mqtt://127.0.0.1:1884"
TABLE: Final = '[[cluster.nodes]]\nname = "b"\naddress = "mqtt+unix:///b"\n'
SECURE: Final[dict[str, Any]] = {"ca_file": "ca.pem", "cert_file": "a.pem", "key_file": "a.key"}


def problem(text: str, tmp_path: Path) -> str:
    """The only problem of a settings file, behind the name of the file."""
    file = tmp_path / "canopy.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as raised:
        load_settings(file, environ={})
    (line,) = raised.value.problems
    return line.removeprefix(f"{file}: ")


def test_there_is_no_cluster_by_default() -> None:
    made = Settings().cluster
    assert (made.name, made.node, made.listen, made.nodes) == ("", "", "", ())
    assert (made.link_timeout, made.dead_after, made.link_bytes) == (3.0, 5.0, 67_108_864)


def test_a_node_leaves_itself_out_of_the_list() -> None:
    nodes = [ClusterNode(name=name, address=f"mqtts://{name}.example.org") for name in "abc"]
    made = Cluster(name="plant", node="b", listen="mqtts://*", nodes=nodes, **SECURE)
    assert [(each.name, each.endpoint.port) for each in made.others] == [("a", 8884), ("c", 8884)]


@for_each(
    ("text", "line"),
    [
        (
            'node = "a"\n',
            'line 2: cluster.node: found "a"; allowed: only with cluster.name',
        ),
        (
            'name = "p"\n',
            'line 2: cluster.node: found ""; allowed: the name of this node, with cluster.name',
        ),
        (
            'name = "p"\nnode = "a"\n',
            f'line 2: cluster.listen: found ""; allowed: {REACHED}{FORMS}',
        ),
        (
            'name = "p q"\n',
            f'line 2: cluster.name: found "p q"; allowed: {A_NAME}"plant", or "" for no cluster',
        ),
        (
            'name = "p"\nnode = "a"\nlisten = "mqtt://0.0.0.0"\n',
            f'line 4: cluster.listen: found "mqtt://0.0.0.0"; allowed: {FORMS}{PLAIN}',
        ),
        (
            'name = "p"\nnode = "a"\nlisten = "ws://h"\n',
            f'line 4: cluster.listen: found "ws://h"; allowed: {FORMS}',
        ),
        (
            'name = "p"\nnode = "a"\nlisten = "mqtts://*"\n',
            'line 2: cluster.ca_file: found ""; allowed: a file (PEM), with an mqtts:// address of a node',
        ),
        (
            'name = "p"\nnode = "a"\nlisten = "mqtt+unix:///a"\nkey_file = "k"\n',
            'line 5: cluster.key_file: found "k"; allowed: only with an mqtts:// address of a node',
        ),
        (
            'name = "p"\nnode = "a"\nlisten = "mqtt+unix:///a"\nnodes = [{name = "b"}]\n',
            f"line 5: cluster.nodes[0].address: missing; allowed: {FORMS}",
        ),
        (
            'name = "p"\nnode = "a"\nlisten = "mqtt+unix:///a"\nlink_timeout = 0.01\n',
            "line 5: cluster.link_timeout: found 0.01; allowed: a number from 0.1 to 300.0",
        ),
        (
            f'name = "p"\nnode = "a"\nlisten = "mqtt+unix:///a"\n{TABLE}{TABLE}',
            'line 9: cluster.nodes[1].name: found "b"; allowed: a name that no other node has',
        ),
    ],
)
def test_a_mistake_is_one_line(text: str, line: str, tmp_path: Path) -> None:
    assert problem(f"[cluster]\n{text}", tmp_path) == line


def test_the_link_to_a_node_is_found_silent_and_dialled_within_link_timeout() -> None:
    node = ClusterNode(name="b", address="mqtts://b.example.org")
    made = Cluster(name="plant", node="a", listen="mqtts://*", nodes=[node], link_timeout=3.0, **SECURE)
    link = upstream_of(made, node, True)
    assert (link.name, link.client_id, link.version, link.subscribe_qos) == ("$node/b", "$node/a", "5.0", 2)
    assert (link.publish, link.aggregate, link.subscribe, link.clean_start) == ((), (), "demand", False)
    assert link.retry_max <= 1.5
    assert link.keep_alive <= 2
    assert upstream_of(made, node, False).clean_start


def test_the_listener_asks_for_certificates_or_is_the_users_own() -> None:
    made = Cluster(name="plant", node="a", listen="mqtts://*:9000", **SECURE)
    listener = listener_settings(made)
    assert listener.tls is not None
    assert (listener.url, listener.tls.client_certificates, listener.tls.client_ca) == (
        "mqtts://*:9000",
        "required",
        "ca.pem",
    )
    own = listener_settings(Cluster(name="plant", node="a", listen="mqtt+unix:///run/a.sock"))
    assert (own.url, own.mode) == ("mqtt+unix:///run/a.sock", "0600")
