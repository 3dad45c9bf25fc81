"""`[[listener]]`: what is understood, what a wrong one is told, and how it goes together with `listen`."""

from __future__ import annotations

import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from canopy_mqtt.settings import Certificate, Endpoint, Listener, Settings, Tls, parse_endpoint
from canopy_mqtt.settings.descriptions import show
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.exposure import exposed
from canopy_mqtt.settings.loader import changed, load_settings, of_tables
from tests.support.problems import problem_of
from tests.support.runs import for_each

CONFIG = Path(__file__).resolve().parents[2] / "config"
CERTIFIED = Tls(certificate="/c.pem", key="/c.key")


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "canopy.toml"


def load(toml: Path, text: str) -> Settings:
    toml.write_text(text)
    return load_settings(toml, environ={})


class TestEndpoint:
    @for_each(
        ("url", "endpoint"),
        [
            ("mqtt://127.0.0.1", Endpoint("mqtt", "127.0.0.1", 1883)),
            ("mqtts://[::1]:0", Endpoint("mqtts", "::1", 0)),
            ("mqtts://broker.example.org", Endpoint("mqtts", "broker.example.org", 8883)),
            ("ws://0.0.0.0", Endpoint("ws", "0.0.0.0", 8080)),
            ("wss://0.0.0.0/", Endpoint("wss", "0.0.0.0", 8443)),
            ("mqtt+unix:///run/canopy/mqtt.sock", Endpoint("mqtt+unix", path="/run/canopy/mqtt.sock")),
        ],
    )
    def test_understood(self, url: str, endpoint: Endpoint) -> None:
        assert parse_endpoint(url) == endpoint
        assert parse_endpoint(endpoint.url()) == endpoint

    @for_each(
        ("url", "why"),
        [
            ("localhost:1883", "mqtt://HOST"),
            ("http://localhost", "mqtt://HOST"),
            ("mqtts://", "mqtt://HOST"),
            ("mqtts://:8883", "0.0.0.0"),
            ("mqtts://h:99999", "out of range"),
            ("mqtts://u@h", "without user"),
            ("wss://h/mqtt", "mqtt://HOST"),
            ("mqtt+unix://host/path", "whole path"),
            ("mqtt+unix:relative", "whole path"),
            ("mqtt+unix:///folder/", "whole path"),
            ("mqtt+unix:///" + "x" * 107, "at most 107 bytes"),
        ],
    )
    def test_refused(self, url: str, why: str) -> None:
        with pytest.raises(ValueError, match=why):
            parse_endpoint(url)
        assert problem_of("LISTENER", f'[{{url = "{url}"}}]').startswith("listener[0].url: found ")


class TestTogether:
    def test_tables_take_the_place_of_the_default_and_stand_beside_what_is_written(self, toml: Path) -> None:
        table = '[[listener]]\nurl = "mqtt://127.0.0.1:1884"\n'
        assert [each.url for each in load(toml, table).listeners] == ["mqtt://127.0.0.1:1884"]
        both = load(toml, 'listen = ["mqtt://127.0.0.1:1883"]\n' + table)
        assert [each.url for each in both.listeners] == ["mqtt://127.0.0.1:1883", "mqtt://127.0.0.1:1884"]
        assert [each.url for each in Settings().listeners] == ["mqtt://127.0.0.1:1883"]
        assert [each.label for each in both.listeners] == ["mqtt://127.0.0.1:1883", "mqtt://127.0.0.1:1884"]

    @for_each(
        ("text", "place"),
        [
            (
                '[[listener]]\nurl = "mqtt://h:1"\n[http]\nlisten = ["http://127.0.0.1:2", "http://127.0.0.1:2/"]',
                "http.listen[1]",
            ),
            ('listen = ["mqtt://127.0.0.1:1"]\n[http]\nlisten = ["http://127.0.0.1:1"]', "http.listen[0]"),
            ('[http]\nlisten = ["http://127.0.0.1:1883"]', "http.listen[0]"),
            ('[[listener]]\nurl = "mqtt+unix:///s"\n[http]\nlisten = ["http+unix:///s"]', "http.listen[0]"),
            ('[[listener]]\nurl = "mqtt://0.0.0.0:1"\n[[listener]]\nurl = "ws://127.0.0.1:1"', "listener[1].url"),
            ('listen = ["mqtt://*:1"]\n[[listener]]\nurl = "ws://127.0.0.1:1"', "listener[0].url"),
            (
                'listen = ["mqtt://127.0.0.1:1"]\n[cluster]\nname = "c"\nnode = "a"\nlisten = "mqtt://127.0.0.1:1"',
                "cluster.listen",
            ),
        ],
    )
    def test_an_address_twice(self, toml: Path, text: str, place: str) -> None:
        with pytest.raises(SettingsError) as caught:
            load(toml, text)
        (problem,) = caught.value.problems
        assert f": {place}: found " in problem
        assert "; allowed: an address that " in problem

    @for_each(
        ("tables", "expected"),
        [
            (
                '[{url = "mqtt://h:0", name = "a"}, {url = "mqtt://h:1", name = "a"}]',
                'listener[1].name: found "a"; allowed: a name that no other listener has',
            ),
            (
                '[{url = "mqtt://h:1", name = "a"}, {url = "ws://h:1", name = "b"}]',
                'listener[1].url: found "ws://h:1"; allowed: an address that no other listener has',
            ),
            (
                '[{url = "mqtts://h"}]',
                "listener[0].tls: missing; allowed: a table [listener.tls] with certificate and key",
            ),
            (
                '[{url = "mqtt://h", tls = {certificate = "c", key = "k"}}]',
                "listener[0].tls: found a table; allowed: only with",
            ),
            ('[{url = "mqtt://h", mode = "0600"}]', 'listener[0].mode: found "0600"; allowed: only with'),
            ('[{url = "mqtt+unix:///s", mode = "999"}]', 'listener[0].mode: found "999"; allowed: the mode of a file'),
            ('[{url = "mqtts://h", tls = {certificate = "c"}}]', "listener[0].tls.key: missing; allowed: a file"),
            (
                '[{url = "mqtts://h", tls = {certificate = "c", key = "k", client_certificates = "required"}}]',
                'listener[0].tls.client_ca: found ""; allowed: a file of certificates, with client_certificates',
            ),
            (
                '[{url = "mqtts://h", tls = {certificate = "c", key = "k", crl = "r"}}]',
                'listener[0].tls.crl: found "r"; allowed: only with client_ca',
            ),
            (
                '[{url = "mqtts://h", tls = {certificate = "c", key = "k", minversion = "1.3"}}]',
                "listener[0].tls.minversion: no such setting; the nearest is min_version",
            ),
            (
                '[{url = "mqtts://h", tls = {certificate = "c", key = "k", more = [{certificate = "c", kye = "k"}]}}]',
                "listener[0].tls.more[0].key: missing",
            ),
            ('[{url = "ws://h", path = "mqtt"}]', 'listener[0].path: found "mqtt"; allowed: a path, like "/mqtt"'),
            ('[{url = "ws://h", path = "/mqtt?x"}]', 'listener[0].path: found "/mqtt?x"; allowed: a path'),
            ('[{url = "mqtt://h", path = "/mqtt"}]', 'listener[0].path: found "/mqtt"; allowed: only with a ws://'),
            (
                '[{url = "mqtt://h", origins = ["https://a"]}]',
                'listener[0].origins: found ["https://a"]; allowed: only',
            ),
            ('[{url = "ws://h", origins = ["a.org"]}]', 'listener[0].origins[0]: found "a.org"; allowed: an origin'),
            (
                '[{url = "ws://h", origins = ["https://a/b"]}]',
                'listener[0].origins[0]: found "https://a/***"; allowed: an origin',
            ),
            (
                '[{url = "mqtt://h", proxy_protocol = "v2"}]',
                'listener[0].proxy_from: found []; allowed: the networks of the proxies, like ["127.0.0.1/32"]',
            ),
            (
                '[{url = "mqtt://h", proxy_from = ["10.0.0.0/8"]}]',
                'listener[0].proxy_from: found ["10.0.0.0/8"]; allowed: only with proxy_protocol',
            ),
            (
                '[{url = "mqtt://h", proxy_protocol = "v1", proxy_from = ["10.0.0.1/8"]}]',
                'listener[0].proxy_from[0]: found "10.0.0.1/8"; allowed: a network, like',
            ),
            (
                '[{url = "mqtt://h", proxy_protocol = "v3"}]',
                'listener[0].proxy_protocol: found "v3"; allowed: "none" or "v1" or "v2"',
            ),
            ('[{url = "mqtt://h", mount = "a"}]', 'listener[0].mount: found "a"; allowed: a topic prefix, like'),
            ('[{url = "mqtt://h", mount = "$SYS/"}]', 'listener[0].mount: found "$SYS/"; allowed: a topic prefix'),
            ('[{url = "mqtt://h", mount = "+/"}]', 'listener[0].mount: found "+/"; allowed: a topic prefix'),
            ('[{url = "mqtt://h", mount = "{group}/"}]', 'listener[0].mount: found "{group}/"; allowed: a topic'),
            ('[{url = "mqtt://h", mount = "{user}-{client}/"}]', "listener[0].mount: found"),
            (
                '[{url = "mqtt://h", mount = "{listener}/"}]',
                'listener[0].name: found ""; allowed: a name that can be a level of a topic, with mount with',
            ),
            ('[{url = "mqtt://h", max_packet_size = 1}]', "listener[0].max_packet_size: found 1; allowed: 0, or an"),
        ],
    )
    def test_a_bad_table(self, tables: str, expected: str) -> None:
        with pytest.raises(SettingsError) as caught:
            load_settings(environ={"CANOPY_LISTENER": tables})
        told = caught.value.problems[0].removeprefix("environment variable CANOPY_LISTENER: ")
        assert told.startswith(expected)

    def test_a_mount(self, toml: Path) -> None:
        for mount in ("tenant/{user}/", "/", "a-{client}/{user}/x/", "{listener}/"):
            settings = load(toml, f'[[listener]]\nurl = "mqtt://h"\nname = "door"\nmount = "{mount}"\n')
            assert settings.listeners[0].mount == mount

    def test_the_password_of_a_key_is_told_nowhere(self) -> None:
        secret = "hunter2-secret"
        tls = f'{{certificate = "c", key = "k", key_password = "{secret}", crl = 7}}'
        assert secret not in problem_of("LISTENER", f'[{{url = "mqtts://h", tls = {tls}}}]')
        assert secret not in problem_of("LISTENER", f'[{{url = "mqtt://h", tls = {tls.replace(", crl = 7", "")}}}]')
        more = (Certificate(certificate="/d.pem", key="/d.key", key_password=secret),)
        tls_settings = Tls(certificate="/c.pem", key="/c.key", key_password=secret, more=more)
        settings = Settings(listener=[Listener(url="mqtts://h", tls=tls_settings)])
        told = of_tables("listener", settings.listener)
        assert told["listener[0].tls.key_password"] == ("***", "")
        assert secret not in "".join(show(value) for value, _ in (*told.values(), *changed(settings).values()))
        assert secret not in repr(settings)

    def test_they_cannot_be_changed_afterwards(self) -> None:
        listener = Listener(url="mqtts://h", tls=CERTIFIED)
        with pytest.raises(ValidationError):
            listener.url = "mqtt://h"
        assert hash(Settings(listener=[listener]))


def test_who_is_reached_without_a_certificate_is_told() -> None:
    (line,) = exposed(Settings(listener=[Listener(url="mqtts://0.0.0.0", name="door", tls=CERTIFIED)]))
    assert line.startswith('listener "door": other machines may reach it')
    asked = Tls(certificate="/c.pem", key="/c.key", client_certificates="required", client_ca="/ca.pem")
    assert list(exposed(Settings(listener=[Listener(url="mqtts://0.0.0.0", tls=asked)]))) == []
    assert list(exposed(Settings(listener=[Listener(url="mqtt+unix:///run/canopy.sock")]))) == []


def test_a_table_in_the_place_of_listen(toml: Path) -> None:
    """The file is named: else the start would only say that the port is in use."""
    with pytest.raises(SettingsError) as caught:
        load(toml, 'listen = ["mqtt://127.0.0.1"]\n[[listener]]\nurl = "ws://127.0.0.1:1883"\n')
    (line,) = caught.value.problems
    told = 'listener[0].url: found "ws://127.0.0.1:1883"; allowed: an address that is not in'
    assert line.startswith(f"{toml}: line 3: {told}")
    toml.write_text('[[listener]]\nurl = "mqtt://127.0.0.1"\n')
    with pytest.raises(SettingsError) as caught:
        load_settings(toml, listen=["mqtt://127.0.0.1:1883"], environ={})
    assert caught.value.problems[0].endswith("leave one of both out (listen: --listen)")
    # The default of listen does not count, and port 0 is another each time.
    assert load(toml, '[[listener]]\nurl = "mqtts://127.0.0.1:1883"\ntls = {certificate = "c", key = "k"}\n').listener
    assert load(toml, 'listen = ["mqtt://127.0.0.1:0"]\n[[listener]]\nurl = "mqtt://127.0.0.1:0"\n').listener


def test_default_toml_explains_every_key_and_has_its_default(toml: Path) -> None:
    """As the file has it, in its place: nothing else has to be changed."""
    text = (CONFIG / "default.toml").read_text(encoding="utf-8")
    example = [line.removeprefix("#").removeprefix("     ") for line in text.splitlines() if line.startswith("#")]
    begin = example.index("[[listener]]")
    end = next(at for at in range(begin, len(example)) if example[at].startswith(" Links to other brokers"))
    table = [line for line in example[begin:end] if line]
    for before, at in pairwise(table):
        assert at.startswith(("# ", "[[")) or before.startswith("# "), at
    tcp, unix = tomllib.loads("\n".join(table))["listener"]
    assert list(Listener.model_fields) == sorted({*tcp, *unix}, key=lambda key: list(Listener.model_fields).index(key))
    assert list(tcp["tls"]) == list(Tls.model_fields)
    made: list[tuple[dict[str, Any], Any]] = [
        (tcp, Listener(url=tcp["url"], tls=CERTIFIED)),
        (unix, Listener(url=unix["url"])),
        (tcp["tls"], Tls(certificate=tcp["tls"]["certificate"], key=tcp["tls"]["key"])),
    ]
    for raw, standard in made:
        for key, value in raw.items():
            if key not in ("tls", "allow_anonymous", "max_delay"):
                kept = getattr(standard, key)
                assert (tuple(value) if isinstance(value, list) else value) == kept, key
    assert len(load(toml, text + "\n".join(table) + "\n").listener) == 2


def test_docs_listeners_has_every_key_and_its_examples_are_good(toml: Path) -> None:
    text = (CONFIG.parent / "docs" / "listeners.md").read_text(encoding="utf-8")
    for key in [*Listener.model_fields, *Tls.model_fields]:
        assert key == "tls" or f"`{key}`" in text, key
    examples = [part.partition("```")[0] for part in text.split("```toml\n")[1:]]
    assert len(examples) >= 2
    for example in examples:
        assert load(toml, example).listener
