"""The Helm chart, rendered by Helm's own library: manifests that fit together, with settings that a broker takes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from canopy_mqtt import Settings
from canopy_mqtt.ctl.options import DEFAULT_URL
from canopy_mqtt.settings.access.authenticators import PasswordFileTable
from canopy_mqtt.settings.loader import load_settings
from canopy_mqtt.version import __version__
from tests.support.commands import options

helm = pytest.importorskip("helm_python")
yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "config" / "helm"
# Everything that can be switched on.
ALL: dict[str, Any] = {
    "tls": {"enabled": True, "existingSecret": "certificate"},
    "websocket": {"enabled": True, "origins": ["https://app.example.org"]},
    "users": {"existingSecret": "users", "acl": True},
    "http": {"existingSecret": "tokens"},
    "service": {
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "loadBalancerClass": "example.org/balancer",
        "nodePorts": {"mqtt": 31883},
    },
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {"enabled": True, "from": [{"podSelector": {}}]},
    "podLabels": {"team": "plant"},
    "nodeSelector": {"disk": "fast"},
    "extraEnv": [{"name": "CANOPY_LIMITS__MAX_CONNECTIONS", "value": "10000"}],
}


def rendered(values: dict[str, Any] | None = None) -> dict[tuple[str, str], dict[str, Any]]:
    """The manifests, by kind and name."""
    with helm.Chart.load(CHART) as chart:
        files = chart.render(values=values or {}, name="broker", namespace="plant")
    documents = [
        document for name, text in files.items() if name.endswith(".yaml") for document in yaml.safe_load_all(text)
    ]
    return {(document["kind"], document["metadata"]["name"]): document for document in documents if document}


def pod(manifests: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = manifests["StatefulSet", "broker-canopy"]["spec"]["template"]["spec"]
    return found


def settings(manifests: dict[tuple[str, str], dict[str, Any]], folder: Path) -> Settings:
    """What the container's command makes of its file, its arguments and its environment."""
    (container,) = pod(manifests)["containers"]
    given = options(*container["args"])
    assert given["config"] == Path("/etc/canopy/settings/canopy.toml")
    file = folder / "canopy.toml"
    file.write_text(manifests["ConfigMap", "broker-canopy"]["data"]["canopy.toml"])
    sets = [*given["sets"], *([f"store.path={given['store']}"] if given["store"] else [])]
    environ = {
        each["name"]: each.get("value", "postgresql://broker@database/broker") for each in container["env"] or ()
    }
    return load_settings(file, sets, given["listen"] or (), environ)


def test_helm_finds_nothing_wrong() -> None:
    found = helm.lint(CHART)
    assert found["errors"] == []
    assert [message["error"] for message in found["messages"]] == ["icon is recommended"]


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


def test_by_default_one_broker_with_a_store_on_a_volume(tmp_path: Path) -> None:
    manifests = rendered()
    assert set(manifests) == {
        ("ConfigMap", "broker-canopy"),
        ("Secret", "broker-canopy-http"),
        ("Service", "broker-canopy"),
        ("Service", "broker-canopy-http"),
        ("StatefulSet", "broker-canopy"),
    }
    taken = settings(manifests, tmp_path)
    assert [listener.url for listener in taken.listeners] == ["mqtt://0.0.0.0:1883"]
    assert taken.store.path == "/var/lib/canopy/store"
    (claim,) = manifests["StatefulSet", "broker-canopy"]["spec"]["volumeClaimTemplates"]
    assert (claim["metadata"]["name"], claim["spec"]["accessModes"]) == ("store", ["ReadWriteOnce"])


def test_the_broker_takes_all_that_can_be_switched_on(tmp_path: Path) -> None:
    manifests = rendered(ALL)
    taken = settings(manifests, tmp_path)
    assert [listener.url for listener in taken.listeners] == [
        "mqtt://0.0.0.0:1883",
        "mqtts://0.0.0.0:8883",
        "ws://0.0.0.0:9001",
    ]
    mounts = {each["name"]: each["mountPath"] for each in pod(manifests)["containers"][0]["volumeMounts"]}
    (users,) = taken.authenticator
    assert isinstance(users, PasswordFileTable)
    assert users.path == f"{mounts['users']}/passwd"
    assert taken.access.acl_file == f"{mounts['users']}/acl"
    assert taken.http.viewer_token_file == f"{mounts['http']}/viewer"
    assert taken.limits.max_connections == 10_000
    claims = manifests["StatefulSet", "broker-canopy"]["spec"]["volumeClaimTemplates"]
    assert set(mounts) == {each["name"] for each in pod(manifests)["volumes"]} | {
        each["metadata"]["name"] for each in claims
    }
    secrets = {each["secret"]["secretName"] for each in pod(manifests)["volumes"] if "secret" in each}
    assert secrets == {"certificate", "users", "tokens"}
    assert ("Secret", "broker-canopy-http") not in manifests


def test_services_monitor_and_policy_name_the_ports_of_the_container() -> None:
    manifests = rendered(ALL)
    (container,) = pod(manifests)["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    labels = manifests["StatefulSet", "broker-canopy"]["spec"]["template"]["metadata"]["labels"]
    served: dict[str, int] = {}
    for name in ("broker-canopy", "broker-canopy-http"):
        service = manifests["Service", name]["spec"]
        assert service["selector"].items() <= labels.items()
        served |= {each["targetPort"]: each["port"] for each in service["ports"]}
    assert served == ports
    allowed = manifests["NetworkPolicy", "broker-canopy"]["spec"]["ingress"]
    assert {each["port"] for rule in allowed for each in rule["ports"]} == set(ports)
    monitor = manifests["ServiceMonitor", "broker-canopy"]["spec"]
    assert (
        monitor["selector"]["matchLabels"].items()
        <= manifests["Service", "broker-canopy-http"]["metadata"]["labels"].items()
    )
    assert monitor["endpoints"][0]["authorization"]["credentials"] == {"name": "tokens", "key": "viewer"}


def test_a_database_takes_the_place_of_the_volume(tmp_path: Path) -> None:
    manifests = rendered({"postgresql": {"existingSecret": "database"}})
    assert settings(manifests, tmp_path).store.url == "postgresql://broker@database/broker"
    (url,) = pod(manifests)["containers"][0]["env"]
    assert url["valueFrom"]["secretKeyRef"] == {"name": "database", "key": "url"}
    assert "volumeClaimTemplates" not in manifests["StatefulSet", "broker-canopy"]["spec"]


def test_replicas_are_nodes_that_share_a_database(tmp_path: Path) -> None:
    """Each pod has the name, the certificate and the address of a node, and only these reach the port of the links."""
    values = {
        "replicas": 3,
        "postgresql": {"existingSecret": "database"},
        "cluster": {"existingSecret": "nodes"},
        "networkPolicy": {"enabled": True},
    }
    manifests = rendered(values)
    workload = manifests["StatefulSet", "broker-canopy"]["spec"]
    (container,) = pod(manifests)["containers"]
    file = tmp_path / "canopy.toml"
    file.write_text(manifests["ConfigMap", "broker-canopy"]["data"]["canopy.toml"])
    variables = {each["name"]: each for each in container["env"]}
    assert variables["CANOPY_CLUSTER__NODE"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert workload["replicas"] == 3
    for number in range(3):
        name = f"broker-canopy-{number}"
        environ = {
            key: each.get("value", name).replace("$(CANOPY_CLUSTER__NODE)", name) for key, each in variables.items()
        }
        taken = load_settings(file, (), (), {**environ, "CANOPY_STORE__URL": "postgresql://broker@database/broker"})
        cluster = taken.cluster
        assert (cluster.name, cluster.node) == ("broker-canopy", name)
        assert cluster.cert_file == f"/run/canopy/cluster/{name}.crt"
        assert cluster.key_file == f"/run/canopy/cluster/{name}.key"
        addresses = {each.name: each.address for each in cluster.nodes}
        assert addresses[name] == f"mqtts://{name}.broker-canopy-nodes.plant.svc:8884"
        assert len(addresses) == 3
    # Kubernetes gives a pod this name in the Service that the StatefulSet names, and that has no address of its own.
    service = manifests["Service", workload["serviceName"]]["spec"]
    assert (workload["serviceName"], service["clusterIP"]) == ("broker-canopy-nodes", "None")
    assert service["publishNotReadyAddresses"]
    assert {each["name"]: each["containerPort"] for each in container["ports"]}["nodes"] == 8884
    assert "/run/canopy/cluster" in {each["mountPath"] for each in container["volumeMounts"]}
    (links,) = [
        each
        for each in manifests["NetworkPolicy", "broker-canopy"]["spec"]["ingress"]
        if each["ports"][0]["port"] == "nodes"
    ]
    (allowed,) = links["from"]
    assert allowed["podSelector"]["matchLabels"].items() <= workload["template"]["metadata"]["labels"].items()


def test_addresses_of_clients_are_a_matter_of_services_that_reach_outside() -> None:
    """Kubernetes refuses externalTrafficPolicy and node ports for a ClusterIP."""
    inside = {**ALL["service"], "type": "ClusterIP"}
    spec = rendered({"service": inside})["Service", "broker-canopy"]["spec"]
    assert not {"externalTrafficPolicy", "loadBalancerClass"} & set(spec)
    assert all("nodePort" not in port for port in spec["ports"])
    outside = rendered(ALL)["Service", "broker-canopy"]["spec"]
    assert outside["externalTrafficPolicy"] == "Local"
    assert outside["ports"][0]["nodePort"] == 31883


@pytest.mark.parametrize("restart", [True, False])
def test_a_change_of_the_settings_restarts_the_broker_if_it_shall(restart: bool) -> None:
    def annotations(text: str) -> Any:
        manifests = rendered({"settings": text, "restartOnSettings": restart})
        return manifests["StatefulSet", "broker-canopy"]["spec"]["template"]["metadata"]["annotations"]

    assert (annotations("[queue]") != annotations("[retained]")) is restart


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"mqtt": {"enabled": False}}, "enable one of mqtt, tls and websocket"),
        ({"tls": {"enabled": True}}, "tls.existingSecret: name the Secret"),
        ({"users": {"acl": True}}, "users.acl: name the Secret"),
        ({"replicaCount": 3}, "replicaCount"),
        ({"replicas": 3}, "postgresql.existingSecret"),
        ({"replicas": 3, "postgresql": {"existingSecret": "database"}}, "cluster.existingSecret"),
        ({"mqtt": {"port": 70_000}}, "/mqtt/port"),
    ],
)
def test_values_that_cannot_be_are_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(helm.HelmError, match=told):
        rendered(values)


def test_it_is_the_pod_of_the_plain_manifest() -> None:
    """config/kubernetes.yaml is for those without Helm."""
    manifest = {each["kind"]: each for each in yaml.safe_load_all((ROOT / "config" / "kubernetes.yaml").read_text())}
    plain = manifest["StatefulSet"]["spec"]["template"]["spec"]
    ours = pod(rendered())
    for name in (
        "securityContext",
        "terminationGracePeriodSeconds",
        "enableServiceLinks",
        "automountServiceAccountToken",
    ):
        assert ours[name] == plain[name], name
    theirs = plain["containers"][0]
    (container,) = ours["containers"]
    for name in ("startupProbe", "livenessProbe", "readinessProbe", "securityContext", "resources", "volumeMounts"):
        assert container[name] == theirs[name], name
    scripts = [each["lifecycle"]["preStop"]["exec"]["command"][2].partition(" && ") for each in (container, theirs)]
    first, second = (options(*shlex.split(script[0])[1:]) for script in scripts)
    assert scripts[0][2] == scripts[1][2]
    assert first.pop("url") == "http://127.0.0.1:8080" == DEFAULT_URL
    assert second.pop("url") is None
    assert first == second
