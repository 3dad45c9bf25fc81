"""What somebody has written into the settings, and what changes nothing."""

from __future__ import annotations

from typing import Any

from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.ineffective import ineffective
from tests.support.runs import for_each

PASSWORDS = {"type": "password-file", "path": "/p"}
TOKENS = {"type": "jwt", "algorithms": ["HS256"], "secret": "x" * 32}
TLS = {"certificate": "/c", "key": "/k"}
HERE = {"name": "here", "url": "mqtt://127.0.0.1:1883"}


def told(embedded: bool = False, **values: Any) -> list[str]:
    return list(ineffective(Settings.model_validate(values), embedded))


def rules(*tables: dict[str, Any], **values: Any) -> list[str]:
    return told(rule=list(tables), **values)


class TestListeners:
    @for_each("key", ["max_packet_size", "max_connections", "max_connections_per_address"])
    def test_a_limit_above_that_of_all(self, key: str) -> None:
        (line,) = told(listener=[{**HERE, key: 1001}], limits={key: 1000})
        assert line.startswith(f'listener "here": {key} = 1001 has no effect, because limits.{key} = 1000')
        assert told(listener=[{**HERE, key: 1000}], limits={key: 1000}) == []

    def test_cipher_suites_of_a_version_that_is_not_spoken(self) -> None:
        listener = {"url": "mqtts://127.0.0.1", "tls": {**TLS, "ciphers": "ECDHE+AESGCM", "min_version": "1.3"}}
        (line,) = told(listener=[listener], authenticator=[PASSWORDS])
        assert "tls.ciphers" in line


class TestAuthenticators:
    def test_one_that_no_listener_asks(self) -> None:
        tables = [{**PASSWORDS, "name": "staff"}, TOKENS]
        (line,) = told(authenticator=tables, listener=[{**HERE, "authenticators": ["staff"]}])
        assert line == 'authenticator[1] "jwt": no listener uses it; add it to the authenticators of one'
        assert told(authenticator=tables, listener=[HERE]) == []

    @for_each("kind", ["trust", "reject"])
    def test_one_behind_one_that_always_decides(self, kind: str) -> None:
        tables = [{"type": kind}, {**PASSWORDS, "name": "staff"}]
        (line,) = told(authenticator=tables, listener=[HERE])
        assert (
            line
            == 'authenticator[1] "staff": never asked, because one of the type "trust" or "reject" stands before it'
        )
        elsewhere = {"url": "mqtt://127.0.0.1:1900", "authenticators": ["staff"]}
        assert told(authenticator=tables, listener=[HERE, elsewhere]) == []


class TestRules:
    def test_a_listener_that_does_not_exist(self) -> None:
        (line,) = rules({"listener": ["here", "inter*"], "filters": "a"}, listener=[HERE])
        assert line == 'rule[0].listener: "inter*" matches no listener; there are: "here"'

    @for_each("rule", [{"group": "staff", "filters": "a"}, {"filters": "{group}/#"}])
    def test_groups_that_nobody_has(self, rule: dict[str, Any]) -> None:
        (line,) = rules(rule, authenticator=[PASSWORDS])
        assert line.startswith("rule[0] applies to groups, but no client has one")
        assert rules(rule, authenticator=[PASSWORDS, TOKENS]) == []
        assert rules(rule, embedded=True) == []

    def test_clients_without_a_user_name_that_do_not_come_in(self) -> None:
        rule = {"anonymous": True, "filters": "a"}
        (line,) = rules(rule, authenticator=[PASSWORDS])
        assert line.startswith("rule[0] applies to no client")
        assert rules(rule, authenticator=[PASSWORDS, {"type": "anonymous"}]) == []
        assert rules(rule, authenticator=[PASSWORDS], listener=[{**HERE, "allow_anonymous": True}]) == []

    def test_nobody_has_a_user_name_and_none(self) -> None:
        (line,) = rules({"anonymous": True, "user": "*", "filters": "a"})
        assert line.startswith("rule[0] applies to no client: anonymous = true and user")

    def test_the_last_word_is_the_files(self) -> None:
        (line,) = told(access={"acl_file": "/acl", "default": "allow"})
        assert line.startswith("access.default has no effect")

    @for_each(("text", "instead"), [("users/%u/#", "{user}"), ("%c/a", "{client}")])
    def test_placeholders_of_mosquitto(self, text: str, instead: str) -> None:
        (line,) = rules({"filters": ["a", text]})
        assert line.startswith(f'rule[0].filters: "{text}": %')
        assert line.endswith(f"is taken literally; write {instead}")
        assert rules({"filters": ["100%", "a%cd", "{user}"]}) == []


def test_a_placeholder_that_is_none() -> None:
    (line,) = told(security={"client_ids": ["{user}-*", "{username}-*"]})
    assert line == 'security.client_ids: "{username}-*": {username} is taken literally; the user name is {user}'


def test_a_slip_in_very_many_rules_is_not_as_many_lines() -> None:
    lines = rules(*[{"anonymous": True, "user": "*", "filters": "a"}] * 200)
    assert len(lines) == 51
    assert lines[-1] == "150 more settings have no effect"


def test_the_defaults() -> None:
    assert told() == []


class TestStore:
    def test_what_mosquitto_would_fill_in_in_a_mount(self) -> None:
        (line,) = told(listener=[{**HERE, "mount": "tenant/%u/"}])
        assert line == 'listener "here": mount: %u is taken literally; write {user}'

    def test_how_is_told_and_not_where(self) -> None:
        (line,) = told(store={"synchronous": "off"})
        assert line == "store.synchronous has no effect without store.path or store.url: everything is in memory"
        assert told(store={"path": "/s", "synchronous": "off"}) == []

    def test_workers_keep_wills_without_a_store(self) -> None:
        assert told(workers={"count": 2}, store={"will_grace": 1.0}) == []
        assert len(told(workers={"count": 1}, store={"will_grace": 1.0})) == 1

    def test_what_says_nothing_of_a_database_that_nodes_share(self) -> None:
        node = {"name": "plant", "node": "a", "listen": "mqtt+unix:///a", "dead_after": 9.0}
        (line,) = told(cluster=node, store={"url": "postgresql://h/d", "commit_window": 0.1, "will_grace": 1.0})
        assert line == "store.will_grace has no effect with cluster.name and store.url: the nodes share their sessions"
        (line,) = told(cluster=node, store={"path": "/s", "will_grace": 1.0})
        assert line.startswith("cluster.dead_after has no effect without cluster.name and store.url: ")
