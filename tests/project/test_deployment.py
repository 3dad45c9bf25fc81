"""What runs a broker elsewhere: systemd takes the unit; what compose.yaml and kubernetes.yaml name is there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import pytest

import canopy_mqtt.admin.server  # noqa: F401 (loading it reads files)
from canopy_mqtt import Broker, Settings
from canopy_mqtt.settings import Http, parse_endpoint
from canopy_mqtt.settings.loader import load_settings
from tests.support.commands import options

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"

MAX_EXPOSED = 15
"""What `systemd-analyze security` may say of the unit, of 100; it says 14 in version 252."""


class TestUnit:
    TEXT = (CONFIG / "canopy.service").read_text()

    @pytest.fixture
    def unit(self, tmp_path: Path) -> Path:
        """The unit, with a command that is there: systemd looks for it."""
        if shutil.which("systemd-analyze") is None:
            pytest.skip("no systemd-analyze")
        file = tmp_path / "canopy.service"
        file.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", self.TEXT, flags=re.MULTILINE))
        return file

    def analyse(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True, timeout=60, check=False
        )

    def test_systemd_takes_it(self, unit: Path) -> None:
        found = self.analyse("verify", "--man=no", str(unit))
        # It is silent about what is right.
        assert (found.returncode, found.stdout, found.stderr) == (0, "", "")

    def test_it_gives_the_process_no_more_than_it_needs(self, unit: Path) -> None:
        found = self.analyse("security", "--offline=true", f"--threshold={MAX_EXPOSED}", str(unit))
        assert found.returncode == 0, found.stdout
        assert "Overall exposure level" in found.stdout

    def test_its_command_is_canopys(self) -> None:
        (command,) = re.findall(r"^ExecStart=\S+/canopy (.+)$", self.TEXT, re.MULTILINE)
        assert options(*command.split())["config"] == Path("/etc/canopy/canopy.toml")


class TestCompose:
    FILE: ClassVar[dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    SERVICES: ClassVar[dict[str, Any]] = FILE["services"]
    BROKER = SERVICES["canopy"]

    def test_what_it_mounts_and_names_is_there(self) -> None:
        mounts = [mount for each in self.SERVICES.values() for mount in each["volumes"]]
        assert {mount.split(":")[0] for mount in mounts if not mount.startswith("./")} == set(self.FILE["volumes"])
        files = [mount.split(":")[0] for mount in mounts if mount.startswith("./")]
        assert len(files) == 5
        assert [file for file in files if not (ROOT / file).is_file()] == []
        assert (ROOT / self.BROKER["build"] / "Dockerfile").is_file()
        for each in self.SERVICES.values():
            assert set(each.get("depends_on", ())) <= set(self.SERVICES)
            assert each.get("network_mode", "service:canopy") == "service:canopy"

    def settings(self) -> Settings:
        given = options(*self.BROKER["command"])
        return load_settings(
            sets=[f"store.path={given['store']}"], listen=given["listen"], environ=self.BROKER["environment"]
        )

    def test_the_broker_takes_its_settings_and_keeps_what_it_promises(self) -> None:
        settings = self.settings()
        (volume,) = self.BROKER["volumes"]
        assert settings.store.path.startswith(volume.partition(":")[2] + "/")
        assert settings.shutdown.flush_timeout < float(self.BROKER["stop_grace_period"].removesuffix("s"))

    def test_nothing_is_open_to_the_network_and_nobody_has_a_known_password(self) -> None:
        ports = [port for each in self.SERVICES.values() for port in each.get("ports", ())]
        assert [port.rpartition(":")[0].partition(":")[0] for port in ports] == ["127.0.0.1"] * 2
        grafana = self.SERVICES["grafana"]["environment"]
        assert grafana["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
        assert grafana["GF_AUTH_BASIC_ENABLED"] == "false"
        assert grafana["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"

    def test_prometheus_asks_the_broker_and_grafana_asks_prometheus(self) -> None:
        (job,) = yaml.safe_load((CONFIG / "observe" / "prometheus.yml").read_text())["scrape_configs"]
        (listen,) = self.settings().http.listen
        assert job["static_configs"][0]["targets"] == [listen.removeprefix("http://")]
        (source,) = yaml.safe_load((CONFIG / "observe" / "grafana" / "datasource.yml").read_text())["datasources"]
        command = self.SERVICES["prometheus"]["command"]
        assert f"--web.listen-address={source['url'].removeprefix('http://')}" in command
        (provider,) = yaml.safe_load((CONFIG / "observe" / "grafana" / "dashboards.yml").read_text())["providers"]
        dashboards = [mount.split(":")[1] for mount in self.SERVICES["grafana"]["volumes"] if "grafana.json" in mount]
        assert [str(Path(file).parent) for file in dashboards] == [provider["options"]["path"]]


class TestKubernetes:
    DOCUMENTS = tuple(yaml.safe_load_all((CONFIG / "kubernetes.yaml").read_text()))
    BY_KIND: ClassVar[dict[str, Any]] = {document["kind"]: document for document in DOCUMENTS}
    POD = BY_KIND["StatefulSet"]["spec"]["template"]["spec"]
    CONTAINER = POD["containers"][0]

    def settings(self) -> Settings:
        ((name, text),) = self.BY_KIND["ConfigMap"]["data"].items()
        given = options(*self.CONTAINER["args"])
        mounts = {mount["name"]: mount["mountPath"] for mount in self.CONTAINER["volumeMounts"]}
        assert given["config"] == Path(mounts["settings"], name)
        return Settings.model_validate(tomllib.loads(text))

    def test_the_broker_takes_its_settings_and_finds_its_files(self) -> None:
        settings = self.settings()
        mounts = {mount["name"]: mount["mountPath"] for mount in self.CONTAINER["volumeMounts"]}
        assert settings.store.path.startswith(f"{mounts['store']}/")
        tokens = (settings.http.operator_token_file, settings.http.viewer_token_file)
        assert tokens == (f"{mounts['http']}/operator", f"{mounts['http']}/viewer")
        named = {each["name"] for each in (*self.POD["volumes"],)}
        claims = {each["metadata"]["name"] for each in self.BY_KIND["StatefulSet"]["spec"]["volumeClaimTemplates"]}
        assert set(mounts) == named | claims

    def test_ports_are_those_that_it_listens_on(self) -> None:
        settings = self.settings()
        ports = {port["name"]: port["containerPort"] for port in self.CONTAINER["ports"]}
        assert ports["mqtt"] == parse_endpoint(settings.listen[0]).port
        assert ports["http"] == settings.http.endpoints[0].port
        served = {port["targetPort"]: port["port"] for port in self.BY_KIND["Service"]["spec"]["ports"]}
        assert served == ports
        labels = self.BY_KIND["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
        assert self.BY_KIND["Service"]["spec"]["selector"].items() <= labels.items()

    @pytest.fixture
    def http(self, tmp_path: Path) -> Http:
        """Its section, on a free port and with tokens of the test."""
        for name in ("operator", "viewer"):
            (tmp_path / name).write_text(f"{name}-" * 8)
        return self.settings().http.model_copy(
            update={
                "listen": ("http://127.0.0.1:0",),
                "operator_token_file": str(tmp_path / "operator"),
                "viewer_token_file": str(tmp_path / "viewer"),
            }
        )

    async def test_probes_need_no_token(self, http: Http) -> None:
        async with Broker(Settings(listen=["mqtt://127.0.0.1:0"], http=http)) as broker, aiohttp.ClientSession() as ask:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                get = self.CONTAINER[probe]["httpGet"]
                assert get["port"] == "http"
                async with ask.get(f"{broker.http[0]}{get['path']}") as answer:
                    assert answer.status == 200
            async with ask.get(f"{broker.http[0]}/metrics") as answer:
                assert answer.status == 401

    def test_it_is_drained_before_it_stops_and_has_the_time(self) -> None:
        (*shell, script) = self.CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
        assert shell == ["/bin/sh", "-c"]
        drain, _, pause = script.partition(" && sleep ")
        (canopy, *words) = shlex.split(drain)
        assert canopy == "canopy"
        given = options(*words)
        assert str(given["token_file"]) == self.settings().http.operator_token_file
        assert given["within"] < float(pause)
        rest = self.settings().shutdown.flush_timeout + 10.0
        assert float(pause) + rest < self.POD["terminationGracePeriodSeconds"]

    def test_it_runs_as_the_images_user_and_writes_to_its_volumes_alone(self) -> None:
        (uid,) = re.findall(r"^USER (\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
        security = self.POD["securityContext"]
        assert security["runAsNonRoot"] is True
        assert {security["runAsUser"], security["fsGroup"]} == {int(uid)}
        own = self.CONTAINER["securityContext"]
        assert own["readOnlyRootFilesystem"] is True
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert not self.POD["enableServiceLinks"]
