"""What looks safer than it is."""

from __future__ import annotations

from typing import Any

from canopy_mqtt.settings import AnonymousTable, CertificateTable, Mqtt, PasswordFileTable, Settings, TrustTable
from canopy_mqtt.settings.exposure import exposed
from tests.support.runs import for_each

PASSWORDS = PasswordFileTable(type="password-file", path="/p")
TLS = {"certificate": "/c", "key": "/k"}


@for_each("host", ["127.0.0.1", "127.8.9.10", "localhost", "[::1]"])
def test_this_machine_alone(host: str) -> None:
    assert list(exposed(Settings(listen=(f"mqtt://{host}:1883",)))) == []


@for_each("host", ["0.0.0.0", "[::]", "192.168.1.5", "broker.example.org"])
def test_other_machines(host: str) -> None:
    (line,) = exposed(Settings(listen=("mqtt://127.0.0.1:1883", f"mqtt://{host}:1884")))
    assert line.startswith(f'listen "mqtt://{host}:1884": other machines may reach it')


def test_a_user_name_proves_nothing() -> None:
    (line,) = exposed(Settings(mqtt=Mqtt(allow_anonymous=False)))
    assert line.startswith("mqtt.allow_anonymous = false has no effect")


def test_where_somebody_checks_who_clients_are() -> None:
    settings = Settings(listen=("mqtt://0.0.0.0:1883",), mqtt=Mqtt(allow_anonymous=False))
    assert list(exposed(settings, authenticated=True)) == []


def test_passwords_without_tls() -> None:
    (line,) = exposed(Settings(listen=("mqtt://0.0.0.0:1883", "mqtt://127.0.0.1:1884"), authenticator=(PASSWORDS,)))
    assert line.startswith('listen "mqtt://0.0.0.0:1883": other machines may reach it without TLS')
    listener: Any = {"url": "mqtts://0.0.0.0:8883", "tls": TLS}
    assert list(exposed(Settings(listener=(listener,), authenticator=(PASSWORDS,)))) == []


def test_names_that_nobody_checks() -> None:
    trust = TrustTable(type="trust")
    assert list(exposed(Settings(authenticator=(trust,)))) == []
    (line,) = exposed(Settings(listen=("mqtt://0.0.0.0:1883",), authenticator=(PASSWORDS, trust)))
    assert 'the authenticator of the type "trust" accepts any user name' in line


def test_certificates_that_nobody_is_asked_for() -> None:
    table = CertificateTable(type="certificate")
    (line,) = exposed(Settings(authenticator=(table,)))
    assert line.startswith('the authenticator of the type "certificate" accepts no client')
    asking: Any = {
        "url": "mqtts://0.0.0.0:8883",
        "tls": {**TLS, "client_certificates": "optional", "client_ca": "/ca"},
    }
    assert list(exposed(Settings(listener=(asking,), authenticator=(table,)))) == []


def test_anonymous_clients_that_do_not_come_in() -> None:
    tables = (PASSWORDS, AnonymousTable(type="anonymous"))
    assert list(exposed(Settings(authenticator=tables))) == []
    (line,) = exposed(Settings(authenticator=tables, mqtt=Mqtt(allow_anonymous=False)))
    assert line.startswith('the authenticator of the type "anonymous" accepts no client')


@for_each(
    ("table", "told"),
    [
        ({"type": "http", "url": "http://auth:8080/x"}, "authenticator[0].url: passwords are sent to another machine"),
        ({"type": "http", "url": "https://auth/x"}, ""),
        ({"type": "http", "url": "http://127.0.0.1:8080/x"}, ""),
        (
            {"type": "http", "url": "https://auth/x", "on_error": "allow"},
            'authenticator[0].on_error = "allow": anybody',
        ),
        (
            {"type": "jwt", "algorithms": ["RS256"], "jwks": "http://id/keys"},
            "authenticator[0].jwks: the keys come from another machine",
        ),
        ({"type": "jwt", "algorithms": ["RS256"], "jwks": "https://id/keys"}, ""),
        ({"type": "jwt", "algorithms": ["RS256"], "jwks": "/etc/keys.json"}, ""),
    ],
)
def test_services_that_are_spoken_to_in_clear(table: dict[str, Any], told: str) -> None:
    lines = list(exposed(Settings.model_validate({"authenticator": [table]})))
    assert len(lines) == (1 if told else 0)
    assert "".join(lines).startswith(told)


def test_anonymous_clients_that_may_do_everything() -> None:
    tables = (PASSWORDS, AnonymousTable(type="anonymous"))
    listener: Any = {"url": "mqtts://0.0.0.0:8883", "name": "public", "tls": TLS}
    (line,) = exposed(Settings(authenticator=tables, listener=(listener,)))
    assert line.startswith('listener "public": other machines may reach it, and clients without a user name can')
    rule: Any = {"anonymous": True, "filters": "public/#"}
    assert list(exposed(Settings(authenticator=tables, listener=(listener,), rule=(rule,)))) == []
    assert list(exposed(Settings(authenticator=(PASSWORDS,), listener=(listener,)))) == []
    let_in: Any = {**listener, "allow_anonymous": True}
    assert len(list(exposed(Settings(authenticator=(PASSWORDS,), listener=(let_in,))))) == 1


def test_a_listener_decides_about_anonymous_clients_by_itself() -> None:
    tables = (PASSWORDS, AnonymousTable(type="anonymous"))
    listener: Any = {"url": "mqtt://127.0.0.1:1883", "allow_anonymous": True}
    settings = Settings(authenticator=tables, listener=(listener,), mqtt=Mqtt(allow_anonymous=False))
    assert list(exposed(settings)) == []


@for_each(
    ("values", "where"),
    [
        ({"rule": [{"filters": "public/#"}, {"user": "admin", "filters": "#"}]}, "rule[1]"),
        ({"rule": [{"filters": "users/{user}/#"}]}, "rule[0]"),
        ({"access": {"acl_file": "/acl"}}, "access.acl_file"),
        ({"security": {"client_ids": ["{user}-*"]}}, "security.client_ids"),
        ({"listener": [{"url": "mqtt://127.0.0.1", "mount": "tenant/{user}/"}]}, "listener[0].mount"),
    ],
)
def test_what_goes_by_user_names_that_nothing_checks(values: dict[str, Any], where: str) -> None:
    (line,) = exposed(Settings.model_validate(values))
    assert line.startswith(f"{where} depends on user names, but nothing checks them")
    assert list(exposed(Settings.model_validate(values), authenticated=True)) == []
    assert list(exposed(Settings.model_validate({**values, "authenticator": [PASSWORDS.model_dump()]}))) == []


def test_mounts_by_client_identifiers_that_any_client_may_choose() -> None:
    def told(mount: str, *client_ids: str) -> list[str]:
        listener: Any = {"url": "mqtt://127.0.0.1:1883", "mount": mount}
        settings = Settings.model_validate({"listener": [listener], "security": {"client_ids": client_ids}})
        return list(exposed(settings, authenticated=True))

    (line,) = told("devices/{client}/")
    assert line.startswith("listener[0].mount depends on client identifiers, but a client may use any")
    assert told("devices/{client}/", "{user}-*") == []
    assert told("tenant/{user}/{client}/") == []
    assert told("tenant/") == []


def test_passwords_are_not_sent_to_a_listener_that_asks_for_none() -> None:
    scram: Any = {"type": "scram-sha-256", "path": "/s"}
    listener: Any = {"url": "mqtt://0.0.0.0:1883", "authenticators": ["scram-sha-256"]}
    inside: Any = {"url": "mqtt://127.0.0.1:1884"}
    assert list(exposed(Settings(authenticator=(PASSWORDS, scram), listener=(listener, inside)))) == []


@for_each(
    ("url", "credentials", "told"),
    [
        ("http://0.0.0.0:8080", {"password_file": "/p"}, True),
        ("http://[::]:8080", {"viewer_token_file": "/t"}, True),
        ("http://127.0.0.1:8080", {"password_file": "/p"}, False),
        ("http://127.0.0.1:8080", {}, False),
        ("http+unix:///run/h", {"operator_token_file": "/t"}, False),
        ("https://0.0.0.0:8443", {"password_file": "/p", "certificate": "/c", "key": "/k"}, False),
    ],
)
def test_credentials_of_operators_without_tls(url: str, credentials: dict[str, str], told: bool) -> None:
    found = list(exposed(Settings.model_validate({"http": {"listen": [url], **credentials}})))
    assert [line.partition(" without TLS")[0] for line in found] == (
        [f'http.listen "{url}": other machines may reach it'] if told else []
    )


@for_each(
    ("url", "credentials", "told"),
    [
        ("mqtt://broker.example.org", {"username": "u", "password": "hunter2"}, True),
        ("mqtt://192.0.2.1:1884", {"username": "u", "password_file": "/p"}, True),
        ("mqtt://broker.example.org", {"username": "u"}, False),
        ("mqtt://localhost", {"username": "u", "password": "hunter2"}, False),
        ("mqtts://broker.example.org", {"username": "u", "password": "hunter2"}, False),
    ],
)
def test_the_password_of_a_link_without_tls(url: str, credentials: dict[str, str], told: bool) -> None:
    link = {"name": "cloud", "url": url, **credentials}
    found = list(exposed(Settings.model_validate({"upstream": [link]})))
    assert [line.partition(" is sent")[0] for line in found] == (['upstream "cloud": its password'] if told else [])


@for_each(("networks", "told"), [(["0.0.0.0/0"], 1), (["10.0.0.0/8", "::/0"], 1), (["10.0.0.0/8"], 0)])
def test_proxies_that_may_be_anybody(networks: list[str], told: int) -> None:
    listener = {"url": "mqtt://127.0.0.1:1883", "proxy_protocol": "v2", "proxy_from": networks}
    found = list(exposed(Settings.model_validate({"listener": [listener]})))
    assert ["proxy_from allows every address" in line for line in found] == [True] * told
