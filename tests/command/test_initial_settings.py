"""`canopy init`: what it writes passes `canopy check-config` once the commands that it names have been called."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner, Result

from canopy_mqtt.command import cli, initial_settings
from canopy_mqtt.command.initial_settings import USES, settings_for
from canopy_mqtt.settings.loader import load_settings
from tests.support.runs import for_each


def canopy(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, prog_name="canopy")


def commands(result: Result) -> list[list[str]]:
    """The commands that it names, taken apart."""
    assert result.exit_code == 0, result.output
    return [
        shlex.split(line, comments=True) for line in result.stdout.partition("next:\n")[2].splitlines() if line.strip()
    ]


@for_each("use", USES)
def test_what_it_names_makes_settings_that_pass(use: str, tmp_path: Path) -> None:
    # A folder whose name a shell and TOML have to be told.
    folder = tmp_path / 'a "b'
    folder.mkdir()
    file = folder / "canopy.toml"
    checked: list[str] = []
    for command in commands(canopy("init", use, "--output", str(file))):
        match command[0]:
            case "openssl" | "echo":
                if shutil.which(command[0]) is None:
                    pytest.skip(f"no {command[0]}")
                line = " ".join(word if word == "|" else shlex.quote(word) for word in command)
                subprocess.run(["sh", "-c", line], check=True, capture_output=True, timeout=60)
            case "canopy" if command[1] == "passwd":
                assert canopy(*command[1:], "-b", "secret").exit_code == 0
            case "canopy" if command[1] == "check-config":
                found = canopy(*command[1:])
                assert found.exit_code == 0, found.output
                assert found.stdout.startswith(f"{command[2]}: OK\n")
                assert "cannot be used" not in found.stdout
                checked.append(command[2])
            case "canopy" if command[1] == "serve":
                break
            case other:
                assert other == "pip"
    assert checked == sorted(str(each) for each in folder.glob("*.toml"))
    assert len(checked) == max(1, len(USES[use].nodes))


def test_the_commands_end_with_what_runs_it(tmp_path: Path) -> None:
    file = tmp_path / "canopy.toml"
    told = commands(canopy("init", "-o", str(file)))
    assert told[:2] == [["canopy", "check-config", str(file)], ["canopy", "serve", "--config", str(file)]]


@for_each(("umask", "mode"), [(0, 0o644), (0o022, 0o644), (0o077, 0o600)])
def test_only_its_user_may_write_the_file(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        canopy("init", "edge", "--output", str(tmp_path / "canopy.toml"))
    finally:
        os.umask(before)
    assert (tmp_path / "canopy.toml").stat().st_mode & 0o777 == mode


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    file = tmp_path / "canopy.toml"
    file.write_text("mine")
    result = canopy("init", "edge", "--output", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"canopy: {file}: exists already, and was not changed; another: --output FILE\n"
    assert file.read_text() == "mine"


def test_a_file_of_one_node_that_is_there_keeps_all_from_being_written(tmp_path: Path) -> None:
    (tmp_path / "canopy-c.toml").write_text("mine")
    result = canopy("init", "cluster", "--output", str(tmp_path / "canopy.toml"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert (
        result.stderr
        == f"canopy: {tmp_path / 'canopy-c.toml'}: exists already, and was not changed; another: --output FILE\n"
    )
    assert [each.name for each in tmp_path.iterdir()] == ["canopy-c.toml"]


def test_the_files_of_nodes_differ_in_what_is_the_nodes_own(tmp_path: Path) -> None:
    assert canopy("init", "cluster", "--output", str(tmp_path / "canopy.toml")).exit_code == 0
    settings = [load_settings(tmp_path / f"canopy-{node}.toml", environ={}) for node in "abc"]
    clusters = [each.cluster for each in settings]
    assert [each.node for each in clusters] == ["a", "b", "c"]
    assert all(each.nodes == clusters[0].nodes and each.name == clusters[0].name for each in clusters)
    for each in clusters:
        assert each.listen == next(node.address for node in each.nodes if node.name == each.node)
        assert (each.cert_file, each.key_file) == (
            str(tmp_path / f"node-{each.node}.pem"),
            str(tmp_path / f"node-{each.node}.key"),
        )
    assert len({(*each.listen, *each.http.listen, each.store.path) for each in settings}) == 3


def test_nodes_of_one_database(tmp_path: Path) -> None:
    """Its password is in the files alone, which nobody else may read. Nothing in the URL is taken for a node's name."""
    url = "postgresql://canopy:node-a%22:8080@127.0.0.1:5433/plant"
    output = str(tmp_path / "canopy.toml")
    told = commands(canopy("init", "cluster", "--database", url, "--output", output))
    files = [tmp_path / f"canopy-{node}.toml" for node in "abc"]
    settings = [load_settings(file, environ={}) for file in files]
    assert {(each.store.url, each.store.path, each.shares_sessions) for each in settings} == {(url, "", True)}
    assert [each.cluster.node for each in settings] == ["a", "b", "c"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert told[0][:5] == ["docker", "run", "--detach", "--publish", "127.0.0.1:5433:5432"]
    assert told[0][5:-1] == [
        word for value in ("USER=canopy", "PASSWORD=PASSWORD", "DB=plant") for word in ("--env", f"POSTGRES_{value}")
    ]
    shown = canopy("init", "cluster", "--database", url, "--output", "-")
    assert f'url = "{url}"' in shown.stdout


@pytest.mark.parametrize(
    ("use", "url", "why"),
    [
        ("dev", "postgresql://db/canopy", "--database is for a cluster: canopy init cluster --database"),
        ("cluster", "mysql://db/canopy", "not the URL of a PostgreSQL database"),
    ],
)
def test_a_database_that_cannot_be(tmp_path: Path, use: str, url: str, why: str) -> None:
    result = canopy("init", use, "--database", url, "--output", str(tmp_path / "canopy.toml"))
    assert result.exit_code == 1
    assert why in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    result = canopy("init", "--output", str(tmp_path / "none" / "canopy.toml"))
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.endswith("cannot be written: No such file or directory\n")


def test_a_use_that_there_is_not(tmp_path: Path) -> None:
    result = canopy("init", "cloud", "--output", str(tmp_path / "canopy.toml"))
    assert (result.exit_code, result.stderr) == (2, "canopy: cloud: allowed: dev, edge, public, recorder, cluster\n")
    assert list(tmp_path.iterdir()) == []


@for_each("use", USES)
def test_on_standard_output_it_is_the_settings_alone(use: str, tmp_path: Path) -> None:
    result = canopy("init", use, "-o", "-")
    assert result.exit_code == 0
    file = tmp_path / "canopy.toml"
    file.write_text(result.stdout)
    load_settings(file, environ={})


def test_every_use_is_shipped() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    shipped = project["tool"]["setuptools"]["package-data"]["canopy_mqtt.settings.files"]
    assert {use.file for use in USES.values()} | {"default.toml"} == set(shipped)


def test_an_installation_without_them_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(initial_settings, "FOLDERS", (tmp_path,))
    with pytest.raises(initial_settings.InitError, match=r"dev\.toml: missing; install Canopy again"):
        settings_for("dev")


def test_nodes_in_containers(tmp_path: Path) -> None:
    """Each file that a node's settings name is mounted where they name it, and what they reach has a name there."""
    yaml = pytest.importorskip("yaml")
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    folder = tmp_path / 'a $b "c'
    folder.mkdir()
    shown = canopy("init", "cluster", "--compose", "--output", str(folder / "canopy.toml"))
    for command in commands(shown):
        if command[0] == "openssl":
            subprocess.run(command, check=True, capture_output=True, timeout=60)
        elif command[:2] == ["canopy", "check-config"]:
            checked = canopy(*command[1:])
            assert checked.exit_code == 0, checked.output
            assert "cannot be used" not in checked.stdout
    password = (folder / "postgresql.password").read_text().strip()
    assert len(password) == 48
    assert password not in shown.stdout
    text = (folder / "canopy-compose.yaml").read_text()
    assert password not in text
    composed = yaml.safe_load(text.replace("$$", "$"))
    database = composed["services"].pop("database")
    assert database["volumes"][0].partition(":")[0] in composed["volumes"]
    assert composed["secrets"]["password"]["file"] == str(folder / "postgresql.password")
    assert database["environment"]["POSTGRES_PASSWORD_FILE"] == "/run/secrets/password"
    nodes = composed["services"]
    for number, (name, node) in enumerate(nodes.items()):
        file = Path(node["command"][-1])
        settings = load_settings(file, environ={})
        mounted = {each["target"]: each["source"] for each in node["volumes"]}
        mounted |= {each["target"]: composed["secrets"][each["source"]]["file"] for each in node["secrets"]}
        assert {Path(source) for source in mounted.values()} == {Path(target) for target in mounted}
        url = urlsplit(settings.store.url)
        passfile = parse_qs(url.query)["passfile"][0]
        cluster = settings.cluster
        assert set(mounted) == {str(file), cluster.ca_file, cluster.cert_file, cluster.key_file, passfile}
        assert Path(passfile).read_text() == f"{url.hostname}:5432:{url.username}:{url.path[1:]}:{password}\n"
        assert (url.hostname, url.username, url.path[1:]) == (
            "database", database["environment"]["POSTGRES_USER"], database["environment"]["POSTGRES_DB"],
        )  # fmt: skip
        assert {urlsplit(each.address).hostname for each in cluster.nodes} == set(nodes)
        assert f"canopy-{cluster.node}" == name
        assert {urlsplit(each.address).port for each in cluster.nodes} == {urlsplit(cluster.listen).port}
        assert set(database["networks"]) <= set(node["networks"]) <= set(composed["networks"])
        # Of those that clients use, only this machine's own address, and no port that another node has.
        assert node["ports"] == [f"127.0.0.1:{1884 + number}:{urlsplit(settings.listen[0]).port}"]
        assert settings.shutdown.flush_timeout < float(node["stop_grace_period"].removesuffix("s"))
        assert node["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert len(nodes) == 3
    assert {file.stat().st_mode & 0o077 for file in folder.iterdir() if file.suffix != ".pem"} == {0}


def test_a_compose_file_is_for_a_cluster_with_its_own_database(tmp_path: Path) -> None:
    for wanted in (("edge",), ("cluster", "--database", "postgresql://u@h/d")):
        result = canopy("init", *wanted, "--compose", "--output", str(tmp_path / "canopy.toml"))
        assert (result.exit_code, result.stdout) == (1, "")
        assert "canopy init cluster --compose" in result.stderr
    assert list(tmp_path.iterdir()) == []
