"""The app for Home Assistant: its files agree with each other, and its scripts serve users, and tell the Supervisor."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import struct
import tomllib
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml  # type: ignore[import-untyped]

from canopy_mqtt import Settings
from canopy_mqtt.version import __version__
from tests.support.certificates import Authority
from tests.support.daemon import canopy
from tests.support.home_assistant import APP, INGRESS, App

CONFIG: Final[dict[str, Any]] = yaml.safe_load((APP / "config.yaml").read_text(encoding="utf-8"))
DOCKERFILE: Final = (APP / "Dockerfile").read_text(encoding="utf-8")
REQUIRED: Final = {"name", "version", "slug", "description", "arch"}
OPTIONAL: Final = {
    "machine", "url", "startup", "webui", "boot", "ports", "ports_description", "host_network", "host_ipc",
    "host_dbus", "host_pid", "host_uts", "devices", "homeassistant", "hassio_role", "hassio_api",
    "homeassistant_api", "docker_api", "privileged", "full_access", "apparmor", "map", "environment", "audio",
    "video", "gpio", "usb", "uart", "udev", "devicetree", "kernel_modules", "stdin", "legacy", "options", "schema",
    "image", "timeout", "tmpfs", "discovery", "services", "auth_api", "ingress", "ingress_port", "ingress_entry",
    "ingress_stream", "panel_icon", "panel_title", "panel_admin", "backup", "backup_pre", "backup_post",
    "backup_exclude", "stage", "init", "watchdog", "realtime", "journald", "breaking_versions", "ulimits",
}  # fmt: skip
"""The keys of docs/apps/configuration.md in home-assistant/developers.home-assistant (commit 066eb46c)."""

needs_clients = pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto_pub is not installed")


class TestFolder:
    def test_the_configuration_has_keys_that_home_assistant_knows(self) -> None:
        assert set(CONFIG) >= REQUIRED
        assert set(CONFIG) <= REQUIRED | OPTIONAL
        assert {each["type"] for each in CONFIG["map"]} <= {"ssl", "app_config"}
        assert set(CONFIG["arch"]) == {"aarch64", "amd64"}
        repository = yaml.safe_load((APP.parent / "repository.yaml").read_text(encoding="utf-8"))
        assert {"name"} <= set(repository) <= {"name", "url", "maintainer"}

    def test_every_option_has_a_type_and_words(self) -> None:
        """An option without a default has a type that ends in "?"."""
        optional = {name for name, kind in CONFIG["schema"].items() if str(kind).endswith("?")}
        assert set(CONFIG["options"]) == set(CONFIG["schema"]) - optional
        words = yaml.safe_load((APP / "translations" / "en.yaml").read_text(encoding="utf-8"))
        assert set(words["configuration"]) == set(CONFIG["schema"])
        assert set(words["network"]) == set(CONFIG["ports"])
        example = yaml.safe_load(blocks("yaml")[0])
        assert set(example) <= set(CONFIG["schema"])
        assert set(example["logins"][1]) == set(CONFIG["schema"]["logins"][0])

    def test_it_is_of_the_brokers_version(self) -> None:
        assert CONFIG["version"] == __version__
        assert re.findall(r"^FROM (.+)$", DOCKERFILE, re.MULTILINE) == [f"registry.example.org/canopy:{__version__}"]
        assert f"\n## {__version__}\n" in (APP / "CHANGELOG.md").read_text(encoding="utf-8")

    def test_the_image_has_every_script(self) -> None:
        (copied,) = re.findall(r"^COPY (.+) /app/$", DOCKERFILE, re.MULTILINE)
        assert set(copied.split()) == {"run.sh", *(file.name for file in APP.glob("*.py"))}
        script = (APP / "run.sh").read_text(encoding="utf-8")
        assert set(re.findall(r"/app/(\S+)", script)) == set(copied.split()) - {"run.sh"}

    @pytest.mark.parametrize(("name", "size"), [("icon", (128, 128)), ("logo", (250, 100))])
    def test_pictures_have_the_size_that_the_store_shows(self, name: str, size: tuple[int, int]) -> None:
        content = (APP / f"{name}.png").read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        assert struct.unpack(">II", content[16:24]) == size

    def test_the_profile_allows_what_the_scripts_name(self) -> None:
        profile = (APP / "apparmor.txt").read_text(encoding="utf-8")
        assert re.findall(r"^profile (\S+) ", profile, re.MULTILINE) == [CONFIG["slug"]]
        for place in ("/app/** r,", "/data/** rwk,", "/run/canopy.sock rw,", "/ssl/** r,", "/config/** r,"):
            assert f"  {place}\n" in profile


def blocks(language: str) -> list[str]:
    """The examples of DOCS.md."""
    page = (APP / "DOCS.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(tmp_path)


def system_user(app: App, name: str) -> tuple[str, str]:
    return name, json.loads((app.data / "system_users.json").read_text())[name]


async def publish(port: int, login: tuple[str, str] | None, *more: str) -> int:
    """Publish with mosquitto_pub; return its exit code."""
    command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(port), "-q", "1", "-t", "home/kitchen", "-m", "21", *more]
    if login is not None:
        command += ["-u", login[0], "-P", login[1]]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    async with asyncio.timeout(30):
        return await process.wait()


@needs_clients
async def test_users_log_in_and_nobody_else(app: App, tmp_path: Path) -> None:
    """Those of the options, with a password or a hash of one, and those of the system."""
    file = tmp_path / "hashed"
    made = await asyncio.to_thread(canopy, "passwd", "--create", "-b", "of bob", str(file), "bob")
    assert made.returncode == 0
    hashed = file.read_text().strip().removeprefix("bob:")
    logins = [
        {"username": "alice", "password": "of alice"},
        {"username": "bob", "password": hashed, "password_pre_hashed": True},
    ]
    async with app.running(logins=logins):
        port = app.ports[1883]
        for login in (("alice", "of alice"), ("bob", "of bob")):
            assert await publish(port, login) == 0
        for name in ("homeassistant", "addons"):
            assert await publish(port, system_user(app, name)) == 0
        assert await publish(port, ("alice", "of bob")) != 0
        assert await publish(port, ("bob", hashed)) != 0
        assert await publish(port, None) != 0
    for secret in ("users", "system_users.json"):
        assert (app.data / secret).stat().st_mode & 0o077 == 0


@needs_clients
async def test_home_assistant_and_other_apps_are_told_where_it_is(app: App) -> None:
    """Each with its user, whose password stays; a service of an earlier run is deleted first."""
    async with app.running() as home:
        assert home.asked == [("POST", "/discovery"), ("DELETE", "/services/mqtt"), ("POST", "/services/mqtt")]
        (discovered,) = home.discovery
        assert discovered["service"] == "mqtt"
        for told, user in ((discovered["config"], "homeassistant"), (home.services["mqtt"], "addons")):
            name, password = system_user(app, user)
            assert told.pop("host")
            expected = {"port": 1883, "ssl": False, "protocol": "3.1.1", "username": name, "password": password}
            assert told == expected
        before = system_user(app, "addons")
        assert await publish(app.ports[1883], before, "-r") == 0
    async with app.running() as home:
        assert system_user(app, "addons") == before
        assert home.services["mqtt"]["password"] == before[1]
        kept = f"{home.url}{INGRESS}/api/v5/mqtt/retainer/message/home%2Fkitchen"
        async with aiohttp.ClientSession() as ask, ask.get(kept) as answer:
            assert (answer.status, (await answer.json())["payload"]) == (200, "MjE=")


async def test_the_page_is_for_home_assistant_alone(app: App) -> None:
    async with app.running() as home, aiohttp.ClientSession() as ask:
        async with ask.get(f"{home.url}{INGRESS}/") as answer:
            assert answer.status == 200
            assert "<title>Canopy" in await answer.text()
        for path in ("/", "/api/v5/clients", "/healthz"):
            async with ask.get(f"http://127.0.0.1:{app.ports[8099]}{path}") as answer:
                assert answer.status == 403


@pytest.mark.long
@needs_clients
async def test_a_certificate_opens_tls_which_may_ask_for_one_of_the_client(app: App, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for inside, made in zip(("fullchain.pem", "privkey.pem"), authority.issue("127.0.0.1"), strict=True):
        shutil.copy(made, app.certificates / inside)
    shutil.copy(authority.file, app.certificates / "clients.pem")
    certificate, key = authority.issue(common_name="kitchen")
    async with app.running(require_certificate=True, cafile="clients.pem"):
        port, user = app.ports[8883], system_user(app, "addons")
        trusting = ("--cafile", authority.file)
        assert await publish(port, user, *trusting, "--cert", certificate, "--key", key) == 0
        assert await publish(port, user, *trusting) != 0
        # The certificate takes the place of no password.
        assert await publish(port, None, *trusting, "--cert", certificate, "--key", key) != 0


@pytest.mark.long
@needs_clients
async def test_a_settings_file_of_the_user_holds_beside_the_apps_own(app: App) -> None:
    (rules,) = blocks("toml")
    Settings.model_validate(tomllib.loads(rules))
    (app.own / "more.toml").write_text(f"[mqtt]\nmax_qos = 0\n{rules}")
    logins = [{"username": "alice", "password": "of alice"}]
    async with app.running(settings="more.toml", logins=logins) as home:
        assert await publish(app.ports[1883], system_user(app, "homeassistant"), "-q", "0", "-r") == 0
        assert await publish(app.ports[1883], ("alice", "of alice"), "-q", "0", "-r", "-t", "home/hall") == 0
        async with aiohttp.ClientSession() as ask, ask.get(f"{home.url}{INGRESS}/api/v5/mqtt/retainer/messages") as it:
            assert [each["topic"] for each in (await it.json())["data"]] == ["home/kitchen"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"logins": [{"username": "addons", "password": "x"}]}, "canopy: logins: addons is a user of Home Assistant"),
        ({"settings": "none.toml"}, "canopy: settings: the app's folder has no readable file none.toml"),
        ({"require_certificate": True}, "canopy: require_certificate: there is no "),
    ],
    ids=["reserved", "settings", "certificate"],
)
async def test_an_option_that_cannot_be_used_is_named(app: App, options: dict[str, Any], told: str) -> None:
    log = await app.ended(**options)
    assert log.startswith(told)
    assert log.count("\n") == 1
