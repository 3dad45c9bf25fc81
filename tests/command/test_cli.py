"""The `canopy` command: what it prints, its exit codes, and that no failure shows a traceback.

`serve` runs here against a stand-in for the broker; whole processes with the real
one: `tests/e2e/test_daemon.py`.
"""

from __future__ import annotations

import asyncio
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from canopy_mqtt import __version__, build_info
from canopy_mqtt.assembly import daemon, logs
from canopy_mqtt.assembly.app import Broker, StartupError
from canopy_mqtt.command import cli, health
from canopy_mqtt.settings import Settings
from canopy_mqtt.settings import loader as configuration
from canopy_mqtt.settings.loader import load_settings
from tests.support.daemon import environment
from tests.support.runs import for_each


class StandIn:
    """A broker that serves nobody."""

    failure: Exception | None = None
    made: list[Settings]
    reads: list[Callable[[], Settings] | None]

    def __init__(self, settings: Settings, read: object = None) -> None:
        del read
        self.made.append(settings)
        self.listening = list(settings.listen)

    async def start(self) -> None:
        if self.failure:
            raise self.failure

    async def stop(self) -> None:
        pass

    async def broken(self) -> str:
        raise NotImplementedError

    async def reload(self, new: Settings) -> list[str]:
        raise NotImplementedError


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    """`canopy serve` makes one of these, and ends as soon as it has started."""
    reads: list[Callable[[], Settings] | None] = []
    made = type("Made", (StandIn,), {"made": [], "reads": reads})
    monkeypatch.setattr(daemon, "real_broker", made)

    def run(
        settings: Settings, make: Callable[[Settings], Any], *, stream: object, read: Callable[[], Settings] | None
    ) -> None:
        del stream
        reads.append(read)
        service = make(settings)
        try:
            service.start().send(None)
        except StopIteration:
            return

    monkeypatch.setattr(daemon, "run", run)
    monkeypatch.setattr(daemon, "ignore_signals", lambda: None)
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    return made


def canopy(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, env=dict(environ), prog_name="canopy")


def test_version_tells_the_build() -> None:
    result = canopy("--version")
    assert result.exit_code == 0
    assert result.stdout == f"{build_info()}\n"
    assert result.stdout.startswith(f"canopy {__version__} (")


def test_without_arguments_it_explains_itself() -> None:
    result = canopy()
    assert "serve" in result.output
    assert "check-config" in result.output


@for_each(
    ("short", "long"),
    [
        (("-V",), ("--version",)),
        (("-h",), ("--help",)),
        (("ctl", "-h"), ("ctl", "--help")),
        (("pipeline", "rollup", "-h"), ("pipeline", "rollup", "--help")),
    ],
)
def test_short_flags(short: tuple[str, ...], long: tuple[str, ...]) -> None:
    assert canopy(*short).exit_code == 0
    assert canopy(*short).stdout == canopy(*long).stdout


@for_each("group", [(), ("ctl",), ("load",), ("store",), ("record",), ("pipeline",)])
def test_lists_of_commands_tell_whole_sentences(group: tuple[str, ...]) -> None:
    listed = canopy(*group, "--help").stdout.partition("Commands:\n")[2]
    assert listed
    assert "..." not in listed


def completed(line: str) -> list[str]:
    """What bash would offer behind this line."""
    words = {"_CANOPY_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    result = canopy(**words)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.split()


def test_the_shell_completes_commands_options_and_uses() -> None:
    assert completed("canopy che") == ["check-config"]
    assert completed("canopy ctl retained --g") == ["--get"]
    assert completed("canopy serve --conf") == ["--config"]
    assert completed("canopy init ed") == ["edge"]


def test_completion_installs_itself(tmp_path: Path) -> None:
    """For bash, which asks `canopy` from then on."""
    canopy = f"{shlex.quote(sys.executable)} -P -c 'from canopy_mqtt.command.cli import main; main()'"
    command = f"{canopy} --install-completion; exit $?"
    result = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        env={**environment(), "HOME": str(tmp_path)},
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    installed = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert any("_CANOPY_COMPLETE=complete_bash" in text for text in installed)


@for_each("arguments", [("nonsense",), ("serve", "--nonsense"), ("check-config", "a", "b"), ("serve", "--set")])
def test_a_wrong_command_line(arguments: tuple[str, ...]) -> None:
    result = canopy(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert "Traceback" not in result.output


class TestServe:
    def test_settings_from_everywhere(self, stand_in: type[StandIn], tmp_path: Path) -> None:
        config = tmp_path / "canopy.toml"
        config.write_text("[mqtt]\nmax_qos = 0\nmax_inflight = 5\n")
        result = canopy(
            "serve",
            f"--config={config}",
            "--listen=mqtt://127.0.0.1:0",
            "--listen=mqtt://[::1]:0",
            "--set=mqtt.max_inflight=6",
            "--log-level=error",
            CANOPY_SYS__INTERVAL="0",
        )
        assert result.exit_code == 0, result.output
        (settings,) = stand_in.made
        assert settings.listen == ("mqtt://127.0.0.1:0", "mqtt://[::1]:0")
        assert settings.mqtt.max_qos == 0
        assert settings.mqtt.max_inflight == 6
        assert settings.sys.interval == 0
        assert settings.log.level == "error"

    @pytest.mark.parametrize("folder", ["/var/lib/canopy", "1", 'it\'s "here"', "a=b"])
    def test_a_store(self, stand_in: type[StandIn], folder: str) -> None:
        assert canopy("serve", "--store", folder).exit_code == 0
        assert stand_in.made[0].store.path == folder

    def test_a_store_in_a_database(self, stand_in: type[StandIn]) -> None:
        assert canopy("serve", "--store", "postgresql://db/canopy").exit_code == 0
        assert (stand_in.made[0].store.url, stand_in.made[0].store.path) == ("postgresql://db/canopy", "")

    def test_the_file_by_either_name(self, stand_in: type[StandIn], tmp_path: Path) -> None:
        """As check-config takes it, and as --config: both commands take both."""
        config = tmp_path / "canopy.toml"
        config.write_text("[mqtt]\nmax_qos = 1\n")
        for form in ([str(config)], ["--config", str(config)], ["-c", str(config)]):
            assert canopy("serve", *form).exit_code == 0
            assert stand_in.made[-1].mqtt.max_qos == 1
            assert "mqtt.max_qos = 1" in canopy("check-config", *form).stdout
        for command in ("serve", "check-config"):
            result = canopy(command, str(config), "-c", str(config))
            assert (result.exit_code, result.stderr.splitlines()[-1]) == (
                2, f"canopy: {config} and --config {config}: one of them",
            )  # fmt: skip

    def test_short_flags(self, stand_in: type[StandIn], tmp_path: Path) -> None:
        config = tmp_path / "canopy.toml"
        config.write_text("[mqtt]\nmax_qos = 1\n")
        assert canopy("serve", "-c", str(config), "-p", "1999", "-v").exit_code == 0
        (settings,) = stand_in.made
        assert (settings.mqtt.max_qos, settings.listen) == (1, ("mqtt://127.0.0.1:1999",))
        assert settings.log.level == "debug"
        result = canopy("serve", "-v", "--log-level", "error")
        assert (result.exit_code, result.stderr) == (2, "canopy: --verbose and --log-level error exclude each other\n")

    def test_a_store_without_a_name_is_no_store_here(self, stand_in: type[StandIn]) -> None:
        result = canopy("serve", "--store", "")
        assert result.exit_code == 2
        assert result.stderr == "canopy: --store: found nothing; allowed: a folder, or the URL of a database\n"
        assert stand_in.made == []


class TestCheckConfig:
    def test_good(self, tmp_path: Path) -> None:
        config = tmp_path / "canopy.toml"
        config.write_text('[limits]\nmax_packet_size = 1000\n[log]\nlevel = "debug"\nformat = "auto"\n')
        result = canopy("check-config", str(config))
        assert result.exit_code == 0
        assert result.stdout.splitlines() == [
            f"{config}: OK",
            "  limits.max_packet_size = 1000  (default 8388608)",
            '  log.level = "debug"  (default "info")',
        ]

    def test_the_environment_counts(self, tmp_path: Path) -> None:
        config = tmp_path / "canopy.toml"
        config.write_text("")
        result = canopy("check-config", str(config), CANOPY_SESSION__QUEUE_QOS0="true")
        assert result.stdout.splitlines()[1:] == ["  session.queue_qos0 = true  (default false)"]

    def test_links_are_listed_key_by_key_without_passwords(self, tmp_path: Path) -> None:
        config = tmp_path / "canopy.toml"
        config.write_text(
            '[[upstream]]\nname = "cloud"\nurl = "mqtt://h"\nusername = "u"\npassword = "hunter2"\npublish = ["a"]\n'
        )
        result = canopy("check-config", str(config))
        assert result.exit_code == 0
        assert result.stdout.splitlines()[:6] == [
            f"{config}: OK",
            '  upstream[0].name = "cloud"',
            '  upstream[0].url = "mqtt://h"',
            '  upstream[0].username = "u"  (default "")',
            '  upstream[0].password = "***"  (default "")',
            '  upstream[0].publish = ["a"]  (default [])',
        ]
        assert "hunter2" not in result.output

    def test_what_is_suspicious_is_told_and_is_no_mistake(self, tmp_path: Path) -> None:
        config = tmp_path / "canopy.toml"
        config.write_text('[[upstream]]\nname = "a"\nurl = "mqtt://h"\nclient_id = "c"\naggregate = ["#"]\n')
        result = canopy("check-config", str(config))
        assert result.exit_code == 0
        told = [line for line in result.stdout.splitlines() if line.startswith("  suspicious: ")]
        assert len(told) == 1
        assert told[0].startswith('  suspicious: upstream[0] "a": aggregate "#": ')

    def test_files_of_links_that_are_not_there_are_told(self, tmp_path: Path) -> None:
        """Settings that can be used, and a link that will not work with them."""
        config, password = tmp_path / "canopy.toml", tmp_path / "password"
        config.write_text(
            f'[[upstream]]\nname = "a"\nurl = "mqtts://h"\nclient_id = "c"\nusername = "u"\n'
            f'password_file = "{password}"\nca_file = "{tmp_path}/none.pem"\n'
        )

        def told() -> list[str]:
            result = canopy("check-config", str(config))
            assert result.exit_code == 0
            assert result.stdout.startswith(f"{config}: the broker starts with these settings, and does without some")
            return [line for line in result.stdout.splitlines() if line.startswith("  cannot be used: ")]

        first, second = told()
        assert first == f'  cannot be used: upstream[0] "a": password_file {password}: No such file or directory'
        assert second.startswith('  cannot be used: upstream[0] "a": ca_file, cert_file or key_file cannot be used')
        password.write_text("hunter2\n")
        assert told() == [second]

    @for_each(("kind", "how"), [("password-file", ""), ("scram-sha-256", "--scram ")])
    def test_a_file_without_users_is_suspicious(self, tmp_path: Path, kind: str, how: str) -> None:
        """mosquitto takes one, and so does Canopy: nobody comes in by it."""
        config, users = tmp_path / "canopy.toml", tmp_path / "users"
        config.write_text(f'[[authenticator]]\ntype = "{kind}"\npath = "{users}"\n')
        users.write_text("# nobody yet\n")
        result = canopy("check-config", str(config))
        assert result.exit_code == 0
        line = f'  suspicious: authenticator "{kind}": {users}: there is no user in it; canopy passwd {how}{users} USER'
        assert line in result.stdout.splitlines()

    def test_without_a_file_the_environment_is_all_there_is(self) -> None:
        result = canopy("check-config", CANOPY_SESSION__QUEUE_QOS0="true", CANOPY_PORT="tcp://10.0.0.1:1883")
        assert result.exit_code == 0
        assert result.stdout.splitlines() == [
            "environment, without a file: OK",
            "  session.queue_qos0 = true  (default false)",
        ]
        result = canopy("check-config", CANOPY_MQTT__MAX_QOS="7")
        assert result.exit_code == 2
        assert result.stderr.startswith("canopy: environment variable CANOPY_MQTT__MAX_QOS: mqtt.max_qos: found 7; ")

    def test_a_variable_that_is_no_setting_is_suspicious(self) -> None:
        result = canopy("check-config", CANOPY_IMAGE__TAG="7")
        assert result.exit_code == 0
        assert result.stdout.splitlines()[1:] == [
            "  suspicious: environment variable CANOPY_IMAGE__TAG: no such setting; it is ignored"
        ]

    def test_what_lets_everybody_in_is_suspicious(self, tmp_path: Path) -> None:
        config = tmp_path / "canopy.toml"
        config.write_text(
            'listen = ["mqtt://0.0.0.0:1883", "mqtt://127.0.0.1:1884"]\n[mqtt]\nallow_anonymous = false\n'
        )
        result = canopy("check-config", str(config))
        assert result.exit_code == 0
        told = [line for line in result.stdout.splitlines() if line.startswith("  suspicious: ")]
        assert [line.split()[1] for line in told] == ["mqtt.allow_anonymous", "listen"]

    @for_each(
        ("text", "why"),
        [
            ('url = "mqtt://127.0.0.1:0"\nauthenticators = ["staff"]\n', 'authenticators: none is called "staff"'),
            (
                'url = "mqtts://127.0.0.1:0"\n[listener.tls]\ncertificate = "/none.pem"\nkey = "/none.key"\n',
                "/none.pem: cannot be read: No such file or directory",
            ),
            ('url = "mqtt+unix:///run/canopy.sock"\ngroup = "no such group"\n', "there is no group 'no such group'"),
        ],
    )
    def test_what_keeps_the_broker_from_starting_is_wrong(self, tmp_path: Path, text: str, why: str) -> None:
        config = tmp_path / "canopy.toml"
        config.write_text(f'[[listener]]\nname = "a"\n{text}')
        result = canopy("check-config", str(config))
        assert result.exit_code == 2
        first, *others = result.stdout.splitlines()
        assert first == f"{config}: the broker does not start with these settings"
        assert [line for line in others if line.startswith(f'  cannot be used: listener "a": {why}')]
        with pytest.raises(StartupError, match=re.escape(why)):
            asyncio.run(Broker(load_settings(config, environ={})).start())

    def test_a_store_where_there_is_a_file(self) -> None:
        result = canopy("check-config", CANOPY_STORE__PATH="/dev/null")
        assert result.exit_code == 2
        assert "  cannot be used: store.path: /dev/null is not a directory" in result.stdout
        with pytest.raises(StartupError, match="/dev/null is not a directory"):
            asyncio.run(Broker(load_settings(environ={"CANOPY_STORE__PATH": "/dev/null"})).start())

    @for_each("file", ["password_file", "viewer_token_file", "operator_token_file"])
    def test_a_file_of_http_that_is_not_there(self, tmp_path: Path, file: str) -> None:
        config = tmp_path / "canopy.toml"
        config.write_text(f'[http]\nlisten = ["http://127.0.0.1:0"]\n{file} = "/none"\n')
        result = canopy("check-config", str(config))
        assert result.exit_code == 2
        assert "\n  cannot be used: http: /none: " in result.stdout
        config.write_text(f'[http]\n{file} = "/none"\n')
        # Nobody listens.
        assert canopy("check-config", str(config)).exit_code == 0

    def test_a_folder_of_the_recorder_or_of_traces_that_cannot_be(self, tmp_path: Path) -> None:
        """The broker goes on without a record, unless it must not."""
        config = tmp_path / "canopy.toml"
        config.write_text('[recorder]\ndirectory = "/dev/null"\n[tracing]\ndirectory = "/dev/null/x"\n')
        result = canopy("check-config", str(config))
        assert result.exit_code == 0
        told = [line for line in result.stdout.splitlines() if "cannot be used" in line]
        assert told == [
            f"  cannot be used: {name}: /dev/null is not a directory: name another one"
            for name in ("recorder.directory", "tracing.directory")
        ]
        result = canopy("check-config", str(config), CANOPY_RECORDER__REQUIRED="true")
        assert result.exit_code == 2
        assert result.stdout.count("/dev/null is not a directory") == 2

    def test_more_connections_than_a_process_here_may_have(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Suspicious, and no mistake: where the broker is started, the limit may be another."""
        monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
        config = tmp_path / "canopy.toml"
        config.write_text("[limits]\nmax_connections = 5000\n")
        result = canopy("check-config", str(config))
        assert result.exit_code == 0
        assert (
            "  suspicious: limits.max_connections = 5000 needs 5192 file descriptors, and this process may have 4096"
            in (result.stdout)
        )
        config.write_text("[limits]\nmax_connections = 3000\n")
        assert "suspicious" not in canopy("check-config", str(config)).stdout

    def test_what_has_no_effect_is_suspicious(self, tmp_path: Path) -> None:
        config = tmp_path / "canopy.toml"
        config.write_text('[[rule]]\nlistener = "none"\nfilters = "a"\n')
        result = canopy("check-config", str(config))
        assert result.exit_code == 0
        assert '  suspicious: rule[0].listener: "none" matches no listener' in result.stdout

    def test_the_defaults_are_a_file_that_changes_nothing(self, tmp_path: Path) -> None:
        result = canopy("check-config", "--defaults")
        assert result.exit_code == 0
        assert "# Open network connections of all clients." in result.stdout
        config = tmp_path / "canopy.toml"
        config.write_text(result.stdout)
        assert canopy("check-config", str(config)).stdout == f"{config}: OK\n"

    def test_the_defaults_of_no_file(self, tmp_path: Path) -> None:
        result = canopy("check-config", "--defaults", str(tmp_path / "canopy.toml"))
        assert result.exit_code == 2
        assert result.stderr == "canopy: --defaults prints the defaults and takes no FILE\n"

    def test_defaults_that_are_not_there(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(configuration, "DEFAULTS", (tmp_path / "none.toml",))
        result = canopy("check-config", "--defaults")
        assert result.exit_code == 2
        assert result.stderr == f"canopy: {tmp_path / 'none.toml'}: missing; install Canopy again\n"

    def test_bad(self, tmp_path: Path) -> None:
        config = tmp_path / "canopy.toml"
        config.write_text("[limits]\nmax_packet_size = 1\nnonsense = 2\n")
        result = canopy("check-config", str(config))
        assert result.exit_code == 2
        assert result.stdout == ""
        assert len(result.stderr.splitlines()) == 2
        assert all(line.startswith(f"canopy: {config}: ") for line in result.stderr.splitlines())

    def test_missing(self, tmp_path: Path) -> None:
        result = canopy("check-config", str(tmp_path / "none.toml"))
        assert result.exit_code == 2
        assert result.stderr == f"canopy: {tmp_path / 'none.toml'}: cannot be read: No such file or directory\n"


@for_each("target", ["localhost", "ws://localhost:80", "mqtt://localhost:x"])
def test_health_of_no_broker_at_all(target: str) -> None:
    result = canopy("health", "--target", target)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1


def test_health_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """By flags, and by the environment, where nobody else on the machine sees a password."""
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(health, "check", lambda *given: asked.append(given[2:4]))
    assert canopy("health").exit_code == 0
    assert canopy("health", "--user", "probe", "--password", "secret").exit_code == 0
    assert canopy("health", CANOPY_HEALTH_USER="probe", CANOPY_HEALTH_PASSWORD="secret").exit_code == 0
    assert asked == [(None, None), ("probe", "secret"), ("probe", "secret")]
    result = canopy("health", "--password", "secret")
    assert result.exit_code == 2
    assert result.stderr == "canopy: --password needs --user: MQTT 3.1.1 has no password without a user name\n"


def test_importing_the_core_imports_no_event_loop() -> None:
    """A load generator uses `canopy_mqtt.core` alone and must not pay for the rest."""
    heavy = "{'asyncio', 'pydantic', 'structlog', 'uvloop'} & set(sys.modules)"
    code = f"import canopy_mqtt.core.protocol.server_protocol, sys; print(sorted({heavy}))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
