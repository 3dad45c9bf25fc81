"""docs/security.md: its examples are good settings, the settings that it names exist, and it names what there is."""

from __future__ import annotations

import re
from pathlib import Path

from canopy_mqtt.settings import PasswordFileTable, Security, Settings, flatten
from canopy_mqtt.settings.access.authenticators import TYPES
from canopy_mqtt.settings.loader import load_settings
from tests.support.runs import for_each

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@for_each("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_is_good(example: str, tmp_path: Path) -> None:
    file = tmp_path / "canopy.toml"
    file.write_text(example)
    assert load_settings(file, environ={}) != Settings()


def test_settings_that_are_named_exist() -> None:
    known = set(flatten(Settings()))
    named = set(re.findall(r"`((?:security|limits|session|mqtt|access)\.[a-z_]+)", PAGE))
    assert named - known == set()
    # Each of the section stands in the page, alone or behind the first of its kind.
    assert [name for name in Security.model_fields if f"{name}`" not in PAGE and f"{name} =" not in PAGE] == []


def test_each_type_of_authenticator_has_a_complete_example() -> None:
    assert set(re.findall(r'^type = "([\w-]+)"', PAGE, re.MULTILINE)) == set(TYPES)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([\w-]+\.md)", PAGE):
        assert (ROOT / "docs" / target).is_file()


def test_the_commands_to_try_the_secure_example_with_make_all_of_its_files() -> None:
    commands = PAGE[PAGE.index("```sh\nsudo install") :].partition("\n```\n")[0]
    settings = load_settings(ROOT / "config/secure.toml", environ={})
    made = {word for word in commands.split("canopy serve")[0].split() if word.startswith("/etc/canopy/")}
    tables = [each.tls for each in settings.listeners if each.tls is not None]
    named = {file for table in tables for file in table.files()}
    named |= {table.path for table in settings.authenticator if isinstance(table, PasswordFileTable)}
    assert made == named
    assert commands.count(f"-p {settings.listeners[0].endpoint.port} --cafile {tables[0].certificate} -u alice") == 2


def test_the_secure_example_shuts_out_strangers() -> None:
    """TLS wherever other machines come in, users, and rules."""
    settings = load_settings(ROOT / "config/secure.toml", environ={})
    for listener in settings.listeners:
        assert listener.tls is not None or listener.endpoint.host == "127.0.0.1"
    assert [table.type for table in settings.authenticator] == ["password-file"]
    assert settings.rule
    assert settings.security.client_ids
