"""A mosquitto.conf as settings of Canopy: what each line becomes, that all of it can be used, and what is told."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from canopy_mqtt.command.cli import app
from canopy_mqtt.convert import mosquitto
from canopy_mqtt.convert.mosquitto import Converted
from canopy_mqtt.convert.options import OPTIONS, SHARED, NotConverted, Setting, first_word, meaning
from canopy_mqtt.convert.source import ConvertError
from canopy_mqtt.settings import Settings, defaults
from canopy_mqtt.settings.loader import load_settings
from tests.convert.manual import LISTENER_TLS, MANUAL
from tests.support.runs import for_each

EXAMPLES = Path("/usr/share/doc/mosquitto/examples/mosquitto.conf")


class Made:
    """The result of a conversion, and the settings that it makes."""

    def __init__(self, converted: Converted, folder: Path) -> None:
        self.toml = converted.toml
        self.guards = "\n".join(converted.guards)
        self.missing = "\n".join(converted.missing)
        self.hints = "\n".join(converted.hints)
        path = folder / "canopy.toml"
        path.write_text(converted.toml)
        self.settings = load_settings(path, environ={})


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    return tmp_path / "mosquitto.conf"


def made(conf: Path, text: str) -> Made:
    conf.write_text(text)
    return Made(mosquitto.convert(conf), conf.parent)


def value(settings: Settings, name: str) -> Any:
    section, _, key = name.partition(".")
    return getattr(getattr(settings, section), key)


class TestSettings:
    @pytest.mark.parametrize(
        ("line", "name", "expected"),
        [
            ("allow_zero_length_clientid false", "mqtt.allow_empty_client_id", False),
            ("auto_id_prefix dev-", "mqtt.auto_id_prefix", "dev-"),
            ("global_max_clients 500", "session.max_sessions", 500),
            ("global_max_connections 400", "limits.max_connections", 400),
            ("max_inflight_messages 20", "mqtt.max_inflight", 20),
            ("max_keepalive 600", "mqtt.max_keep_alive", 600),
            ("max_keepalive 65535", "mqtt.max_keep_alive", 0),
            ("max_packet_size 2000000", "limits.max_packet_size", 2_000_000),
            ("max_queued_bytes 0", "queue.session_bytes", 0),
            ("max_inflight_bytes -1", "mqtt.max_inflight_bytes", 0),
            ("max_queued_messages 0x10 # remark", "queue.session_messages", 16),
            ("maximum_qos 1", "mqtt.max_qos", 1),
            ("max_queued_messages 1000", "queue.session_messages", 1000),
            ("message_size_limit 100", "limits.max_payload_size", 100),
            ("persistent_client_expiration 2m", "session.max_expiry", 5_184_000),
            ("queue_qos0_messages true", "session.queue_qos0", True),
            ("retain_available false", "mqtt.retain_available", False),
            ("sys_interval 60", "sys.interval", 60),
            ("upgrade_outgoing_qos true", "mqtt.upgrade_outgoing_qos", True),
            ("accept_protocol_versions 4, 5", "mqtt.versions", ("3.1.1", "5.0")),
            ("max_qos 1", "mqtt.max_qos", 1),
            ("max_topic_alias 10", "mqtt.topic_alias_maximum", 10),
            ("max_topic_alias_broker 5", "mqtt.topic_alias_outbound", 5),
            ("clientid_prefixes secure-", "security.client_ids", ("secure-*",)),
            ("clientid_prefixes secure-", "mqtt.allow_empty_client_id", False),
            ("log_type all", "log.level", "debug"),
            ("log_type error\nlog_type warning", "log.level", "warning"),
        ],
    )
    def test_an_option_that_is_one_setting(self, conf: Path, line: str, name: str, expected: object) -> None:
        converted = made(conf, f"listener 1883\n{line}\n")
        assert value(converted.settings, name) == expected
        assert f"# mosquitto.conf:2: {line.splitlines()[0]}" in converted.toml
        assert (converted.guards, converted.missing) == ("", "")

    @pytest.mark.parametrize(
        "name", sorted(name for name in OPTIONS if isinstance(OPTIONS[name], Setting) or name in SHARED)
    )
    def test_a_value_that_cannot_be_is_named(self, conf: Path, name: str) -> None:
        converted = made(conf, f"{name} \x01?\n" if "prefix" in name else f"{name} nonsense\n")
        assert f"mosquitto.conf:1: {name}" in converted.missing

    def test_a_value_out_of_bounds_is_named(self, conf: Path) -> None:
        converted = made(conf, "max_packet_size 1\n")
        assert "limits.max_packet_size cannot be 1; allowed: 0, or an integer from 2" in converted.missing

    @pytest.mark.parametrize(
        ("text", "packet", "payload"),
        [
            ("message_size_limit 1000", 8_388_608, 1_000),
            ("message_size_limit 50000000", 50_131_072, 50_000_000),
            ("message_size_limit 0", 0, 0),
            ("message_size_limit 268435455", 0, 268_435_455),
            ("message_size_limit 50000000\nmax_packet_size 2000000", 2_000_000, 50_000_000),
        ],
    )
    def test_a_packet_with_the_largest_payload_fits(self, conf: Path, text: str, packet: int, payload: int) -> None:
        limits = made(conf, f"{text}\n").settings.limits
        assert (limits.max_packet_size, limits.max_payload_size) == (packet, payload)

    @pytest.mark.parametrize(
        ("text", "name", "expected"),
        [
            ("max_queued_bytes 20000", "queue.session_bytes", 20_000 + 1_000 * 512),
            ("max_queued_bytes 20000\nmax_queued_messages 50", "queue.session_bytes", 20_000 + 50 * 512),
            ("max_inflight_bytes 5000", "mqtt.max_inflight_bytes", 5_000 + 20 * 512),
            ("max_inflight_messages 100\nmax_inflight_bytes 5000", "mqtt.max_inflight_bytes", 5_000 + 100 * 512),
        ],
    )
    def test_bytes_of_payloads_are_not_bytes_of_messages(self, conf: Path, text: str, name: str, expected: int) -> None:
        """As many messages with that much payload have room; the difference is named."""
        converted = made(conf, f"{text}\n")
        assert value(converted.settings, name) == expected
        assert "mosquitto counts payloads, Canopy what messages take" in converted.missing

    def test_the_last_of_several_lines_holds(self, conf: Path) -> None:
        assert made(conf, "sys_interval 5\nsys_interval 7\n").settings.sys.interval == 7

    @pytest.mark.parametrize(
        ("text", "path"),
        [
            ("persistence true\n", "/var/lib/canopy"),
            ("persistence true\npersistence_location /var/lib/mosquitto/\n", "/var/lib/mosquitto/canopy"),
            ("persistence_location /a\npersistence false\npersistence 1\npersistence_location /b\n", "/b/canopy"),
            ("persistence false\npersistence_location /a\n", ""),
            ("retained_persistence true\npersistence_location /a\n", "/a/canopy"),
            ("persistence_location /a\n", ""),
            ("persistence maybe\n", ""),
        ],
    )
    def test_what_is_kept(self, conf: Path, text: str, path: str) -> None:
        converted = made(conf, text)
        assert converted.settings.store.path == path
        theirs = "" if path == "/var/lib/canopy" else f"{path.removesuffix('canopy')}"
        command = f"import what mosquitto has saved: canopy store import {path} --mosquitto {theirs}mosquitto.db"
        assert (command in converted.hints) is (path != "")
        assert converted.missing == ("" if "maybe" not in text else converted.missing)

    def test_listeners_that_do_not_agree(self, conf: Path) -> None:
        converted = made(conf, "listener 1883\nmax_qos 1\nlistener 1884\nallow_anonymous true\n")
        assert converted.settings.mqtt.max_qos == 1
        assert "mqtt.max_qos is one for all listeners, and not all of them set it; the strictest value, 1, holds" in (
            converted.missing
        )
        told = made(conf, "listener 1883\naccept_protocol_versions 3,4\nlistener 1884\naccept_protocol_versions 4,5\n")
        assert 'they do not agree; the strictest value, ["3.1.1"], holds' in told.missing

    @pytest.mark.parametrize("second", ["listener 1883", "listener 1883 0.0.0.0", "listener 1883 127.0.0.1"])
    def test_a_second_listener_at_an_address_is_off(self, conf: Path, second: str) -> None:
        """mosquitto does not start with it."""
        converted = made(conf, f"listener 1883\nallow_anonymous true\n{second}\n")
        assert [each.url for each in converted.settings.listener] == ["mqtt://*:1883"]
        assert f":3: {second}: missing: off: another listener is there already" in converted.missing

    def test_a_file_of_another_program_is_refused(self, conf: Path) -> None:
        """Its settings would be those of an empty mosquitto.conf."""
        conf.write_text(
            "# EMQX\nnode {\n  name = emqx\n}\nlisteners.tcp.default {\n  bind = 1883\n  max_connections = 9\n}\n"
        )
        with pytest.raises(
            ConvertError, match=r"6 of 7 lines are no options of mosquitto, as mosquitto\.conf:2; this is"
        ):
            mosquitto.convert(conf)

    def test_a_line_that_mosquitto_does_not_know(self, conf: Path) -> None:
        told = made(conf, "max_conections 5\n").missing
        assert "have no such option; nearest is max_connections" in told

    def test_what_may_be_a_secret_is_not_repeated(self, conf: Path) -> None:
        converted = made(conf, "remote_pasword hunter2\n")
        assert "remote_pasword ***: missing" in converted.missing
        assert "hunter2" not in converted.toml
        conf.write_text("-----BEGIN PRIVATE KEY-----\nMIGH\n")
        with pytest.raises(ConvertError, match="this is no mosquitto") as caught:
            mosquitto.convert(conf)
        assert "MIGH" not in str(caught.value)

    @pytest.mark.parametrize(
        "line", ["enable_control_api", "bridge_insecure", "proxy_protocol_v2_require_tls", "bridge_require_ocsp"]
    )
    def test_what_is_off_is_not_missing(self, conf: Path, line: str) -> None:
        text = "listener 1883\nallow_anonymous true\n"
        text += "enable_proxy_protocol 2\n" if "proxy" in line else "connection a\naddress h\ntopic a\n"
        without = made(conf, text)
        with_it = made(conf, f"{text}{line} true\n")
        assert (with_it.guards, with_it.missing) != (without.guards, without.missing)
        converted = made(conf, f"{text}{line} false\n")
        assert (converted.guards, converted.missing) == (without.guards, without.missing)
        assert f"{line} false" in converted.toml


class TestListeners:
    def test_none_is_this_machine_alone(self, conf: Path) -> None:
        settings = made(conf, "sys_interval 5\n").settings
        assert [each.url for each in settings.listener] == ["mqtt://127.0.0.1:1883"]
        assert settings.mqtt.allow_anonymous

    @pytest.mark.parametrize(
        ("text", "urls"),
        [
            ("port 1900", ["mqtt://*:1900"]),
            ("bind_address 127.0.0.1", ["mqtt://127.0.0.1:1883"]),
            ("listener 1883", ["mqtt://*:1883"]),
            ("listener 1883 192.0.2.7", ["mqtt://192.0.2.7:1883"]),
            ("listener 1883 ::1", ["mqtt://[::1]:1883"]),
            ("listener 1883\nsocket_domain ipv4", ["mqtt://0.0.0.0:1883"]),
            ("listener 1883\nsocket_domain ipv6", ["mqtt://[::]:1883"]),
            ("listener 1883\nbind_interface lo", ["mqtt://127.0.0.1:1883"]),
            ("listener 0 /run/mq.sock", ["mqtt+unix:///run/mq.sock"]),
            ("listener 8080\nprotocol websockets", ["ws://*:8080"]),
            ("listener 1883\nlistener 1884 ::", ["mqtt://*:1883", "mqtt://[::]:1884"]),
            ("max_connections 5\nlistener 1884", ["mqtt://*:1883", "mqtt://*:1884"]),
        ],
    )
    def test_where_they_listen(self, conf: Path, text: str, urls: list[str]) -> None:
        """mosquitto opens the default listener too where an option of it stands above the first."""
        settings = made(conf, f"{text}\nallow_anonymous true\n").settings
        assert sorted(each.url for each in settings.listener) == sorted(urls)

    def test_tls(self, conf: Path) -> None:
        text = (
            "listener 8883\ncertfile /c.pem\nkeyfile /k.pem\ntls_version tlsv1.3\nciphers ECDHE\n"
            "cafile /ca.pem\nrequire_certificate true\ncrlfile /crl.pem\nmax_connections 7\nallow_anonymous true\n"
        )
        (listener,) = made(conf, text).settings.listener
        assert listener.url == "mqtts://*:8883"
        assert listener.max_connections == 7
        tls = listener.tls
        assert tls is not None
        assert (tls.certificate, tls.key, tls.min_version, tls.ciphers) == ("/c.pem", "/k.pem", "1.3", "ECDHE")
        assert (tls.client_certificates, tls.client_ca, tls.crl) == ("required", "/ca.pem", "/crl.pem")

    def test_web_sockets_over_tls(self, conf: Path) -> None:
        text = (
            "listener 8443\nprotocol websockets\ncertfile /c\nkeyfile /k\n"
            "websockets_origin https://a.example\nwebsockets_origin https://b.example\nallow_anonymous true\n"
        )
        (listener,) = made(conf, text).settings.listener
        assert listener.url == "wss://*:8443"
        assert listener.origins == ("https://a.example", "https://b.example")

    def test_a_prefix_for_topics(self, conf: Path) -> None:
        converted = made(conf, "listener 1883\nmount_point a/b/\nallow_anonymous true\n")
        assert converted.settings.listener[0].mount == "a/b/"
        assert "clients with a mount can use no topics that begin with $" in converted.missing

    def test_a_proxy_in_front(self, conf: Path) -> None:
        (listener,) = made(conf, "listener 1883\nenable_proxy_protocol 2\nallow_anonymous true\n").settings.listener
        assert (listener.proxy_protocol, listener.proxy_from) == ("v2", ("127.0.0.1/32",))

    def test_authorities_complete_the_chain_where_no_client_is_asked(self, conf: Path) -> None:
        """The layout of Let's Encrypt."""
        text = "listener 8883\ncertfile /cert.pem\nkeyfile /k.pem\ncafile /chain.pem\nallow_anonymous true\n"
        converted = made(conf, text)
        tls = converted.settings.listener[0].tls
        assert tls is not None
        assert (tls.certificate, tls.chain, tls.client_certificates) == ("/cert.pem", "/chain.pem", "none")
        assert (converted.guards, converted.missing) == ("", "")

    def test_the_default_listener_opens_where_mosquitto_opens_it(self, conf: Path) -> None:
        """An option of a listener above the first `listener` opens it in 2.0, but not each of them."""
        for option, ports in (("tls_version tlsv1.2", {1884}), ("protocol mqtt", {1884}), ("max_qos 1", {1883, 1884})):
            settings = made(conf, f"{option}\nlistener 1884\nallow_anonymous true\n").settings
            assert {each.endpoint.port for each in settings.listener} == ports

    def test_where_no_listener_is_left_nobody_comes_in(self, conf: Path) -> None:
        """Canopy's own default listens on 127.0.0.1."""
        settings = made(conf, "listener 8883\npsk_hint x\nallow_anonymous true\n").settings
        assert settings.listener == ()
        assert [each.type for each in settings.authenticator] == ["reject"]
        assert not settings.mqtt.allow_anonymous

    @pytest.mark.parametrize(
        "options",
        [
            "psk_hint x",
            "enable_proxy_protocol 2\nrequire_certificate true",
            "enable_proxy_protocol 2\nproxy_protocol_v2_require_tls true",
            "enable_proxy_protocol 2\nuse_identity_as_username true",
            "enable_proxy_protocol 1\nrequire_certificate true",
            "use_username_as_clientid true",
            "mount_point a",
            "mount_point $SYS/",
            "certfile /c",
            "keyfile /k",
            "protocol http_api",
            "certfile /c\nkeyfile /k\nrequire_certificate true",
            "enable_proxy_protocol 3",
        ],
    )
    def test_one_whose_guard_cannot_be_kept_is_off(self, conf: Path, options: str) -> None:
        converted = made(conf, f"listener 1883\n{options}\nlistener 1884\nallow_anonymous true\n")
        assert [each.url for each in converted.settings.listener] == ["mqtt://*:1884"]
        assert '# url = "mqtt' in converted.toml
        assert "off" in converted.guards + converted.missing

    def test_a_port_that_is_none(self, conf: Path) -> None:
        converted = made(conf, "listener nonsense\nlistener 1884\nallow_anonymous true\n")
        assert [each.url for each in converted.settings.listener] == ["mqtt://*:1884"]
        assert "no address to listen on" in converted.missing


class TestAccess:
    def test_a_password_file_and_an_acl_file(self, conf: Path) -> None:
        settings = made(conf, "listener 1883\npassword_file /etc/passwd\nacl_file /etc/acl\n").settings
        (table,) = settings.authenticator
        assert (table.type, getattr(table, "path", "")) == ("password-file", "/etc/passwd")
        assert settings.access.acl_file == "/etc/acl"
        assert not settings.mqtt.allow_anonymous

    def test_anonymous_clients_beside_users(self, conf: Path) -> None:
        settings = made(conf, "listener 1883\npassword_file /p\nallow_anonymous true\n").settings
        assert [table.type for table in settings.authenticator] == ["password-file"]
        assert settings.listener[0].allow_anonymous

    def test_everybody_where_mosquitto_lets_everybody_in(self, conf: Path) -> None:
        settings = made(conf, "listener 1883\nallow_anonymous true\n").settings
        assert settings.authenticator == ()
        assert settings.mqtt.allow_anonymous

    @pytest.mark.parametrize("text", ["port 1883", "listener 1883", "listener 1883\nallow_anonymous false"])
    def test_nobody_where_mosquitto_lets_nobody_in(self, conf: Path, text: str) -> None:
        """Without users and without `allow_anonymous true`, mosquitto 2 refuses every client, also one with a name."""
        settings = made(conf, f"{text}\n").settings
        assert [table.type for table in settings.authenticator] == ["reject"]
        assert not settings.mqtt.allow_anonymous

    @pytest.mark.parametrize(
        "option", ["auth_plugin /x/dynsec.so", "plugin /x/my_password_file.so", "global_plugin /x/y.so"]
    )
    def test_nobody_by_a_plug_in_that_is_not_there(self, conf: Path, option: str) -> None:
        converted = made(conf, f"listener 1883\nallow_anonymous true\n{option}\nplugin_opt_url http://x\n")
        assert [table.type for table in converted.settings.authenticator] == ["reject"]
        assert not converted.settings.mqtt.allow_anonymous
        assert converted.settings.access.default == "deny"
        assert "no plug-ins of mosquitto here" in converted.guards

    def test_the_plug_ins_of_mosquitto_2_1_that_read_the_same_files(self, conf: Path) -> None:
        text = (
            "listener 1883\n"
            "plugin /usr/lib/mosquitto_password_file.so\nplugin_opt_password_file /p\n"
            "plugin /usr/lib/mosquitto_acl_file.so\nplugin_opt_acl_file /a\n"
        )
        converted = made(conf, text)
        assert [getattr(table, "path", "") for table in converted.settings.authenticator] == ["/p"]
        assert converted.settings.access.acl_file == "/a"
        assert "no plug-ins" not in converted.guards + converted.missing

    @pytest.mark.parametrize(
        ("option", "user"), [("use_identity_as_username", "cn"), ("use_subject_as_username", "subject")]
    )
    def test_certificates_as_users(self, conf: Path, option: str, user: str) -> None:
        """The password file does not count at such a listener."""
        text = (
            "password_file /p\nlistener 1883\n"
            f"listener 8883\ncertfile /c\nkeyfile /k\ncafile /ca\nrequire_certificate true\n{option} true\n"
        )
        settings = made(conf, text).settings
        plain, secure = settings.listener
        assert plain.authenticators == ("password-file",)
        (name,) = secure.authenticators
        (table,) = [each for each in settings.authenticator if each.type == "certificate"]
        assert (table.name or table.type, getattr(table, "user", "")) == (name, user)

    @pytest.mark.parametrize("option", ["use_identity_as_username", "use_subject_as_username"])
    @pytest.mark.parametrize("required", ["", "cafile /ca\nrequire_certificate true\n"])
    def test_without_a_certificate_nobody_comes_in_where_it_is_the_user(
        self, conf: Path, option: str, required: str
    ) -> None:
        """As in mosquitto, whatever allow_anonymous says."""
        text = f"listener 8883\ncertfile /c\nkeyfile /k\n{required}{option} true\nallow_anonymous true\n"
        settings = made(conf, text).settings
        assert [each.type for each in settings.authenticator] == ["certificate"]
        assert not settings.mqtt.allow_anonymous
        assert settings.listener[0].allow_anonymous is not True

    @pytest.mark.parametrize("option", ["require_certificate", "use_identity_as_username", "use_subject_as_username"])
    def test_a_guard_that_cannot_be_read_closes_its_listener(self, conf: Path, option: str) -> None:
        """mosquitto does not start with it; without it anybody would come in."""
        text = (
            "listener 1883 127.0.0.1\n"
            f"listener 8883\ncertfile /c\nkeyfile /k\ncafile /ca\n{option} yes\nallow_anonymous true\n"
        )
        converted = made(conf, text)
        assert [each.url for each in converted.settings.listener] == ["mqtt://127.0.0.1:1883"]
        assert f"{option} yes: KEEPS SOMEBODY OUT" in converted.guards

    def test_what_opens_one_listener_opens_no_other_where_that_cannot_be_read(self, conf: Path) -> None:
        text = "per_listener_settings yes\nlistener 1883 127.0.0.1\nallow_anonymous true\nlistener 1884\n"
        converted = made(conf, text)
        assert "per_listener_settings yes: KEEPS SOMEBODY OUT" in converted.guards
        asked = {each.url.rpartition(":")[2]: each.authenticators for each in converted.settings.listener}
        assert asked["1884"] == ("nobody",)

    def test_each_listener_for_itself(self, conf: Path) -> None:
        text = (
            "per_listener_settings true\n"
            "listener 1883 127.0.0.1\nallow_anonymous true\n"
            "listener 1884\npassword_file /one\n"
            "listener 1885\npassword_file /two\nallow_anonymous true\n"
            "listener 1886\n"
        )
        settings = made(conf, text).settings
        asked = {each.url.rpartition(":")[2]: each for each in settings.listener}
        assert (asked["1883"].authenticators, asked["1883"].allow_anonymous) == (("trust",), True)
        assert (asked["1884"].authenticators, asked["1884"].allow_anonymous) == (("password-file",), False)
        assert (asked["1885"].authenticators, asked["1885"].allow_anonymous) == (("password-file-2",), True)
        assert (asked["1886"].authenticators, asked["1886"].allow_anonymous) == (("nobody",), False)
        assert settings.mqtt.allow_anonymous

    def test_a_listener_without_an_acl_file_beside_one_with_it_has_a_rule(self, conf: Path) -> None:
        text = "per_listener_settings true\nlistener 1883\nallow_anonymous true\nlistener 1884\nacl_file /a\n"
        settings = made(conf, text).settings
        (rule,) = settings.rule
        named = {each.endpoint.port: each.label for each in settings.listener}
        assert (settings.access.acl_file, rule.listener) == ("/a", (named[1883],))
        assert named[1884] not in rule.listener

    def test_different_acl_files_leave_nothing_allowed(self, conf: Path) -> None:
        text = "per_listener_settings true\nlistener 1883\nacl_file /a\nlistener 1884\nacl_file /b\n"
        converted = made(conf, text)
        assert (converted.settings.access.acl_file, converted.settings.access.default) == ("", "deny")
        assert "one file holds for all listeners" in converted.guards

    def test_a_listener_may_have_an_own_rule_of_anonymous_clients(self, conf: Path) -> None:
        text = "password_file /p\nlistener 1883\nlistener_allow_anonymous true\nlistener 1884\n"
        settings = made(conf, text).settings
        first, second = settings.listener
        assert (first.authenticators, first.allow_anonymous) == ((), True)
        assert (second.authenticators, second.allow_anonymous) == ((), False)

    def test_user_names_as_identifiers_where_all_listeners_have_them(self, conf: Path) -> None:
        text = "listener 1883\nuse_username_as_clientid true\nallow_anonymous true\n"
        converted = made(conf, text)
        assert converted.settings.security.client_ids == ("{user}",)
        assert not converted.settings.mqtt.allow_anonymous
        assert "a client has to send its user name as identifier" in converted.missing

    @pytest.mark.parametrize(
        ("line", "told"), [("", True), ("check_retain_source true", True), ("check_retain_source false", False)]
    )
    def test_retained_messages_of_publishers_that_lost_their_right(self, conf: Path, line: str, told: bool) -> None:
        """mosquitto withholds them where there are rules, unless it is told not to."""
        for rules in ("", "acl_file /a\n"):
            converted = made(conf, f"allow_anonymous true\nlistener 1883\n{rules}{line}\n")
            checked = told and rules != ""
            assert converted.settings.retained.check_publisher is checked
            # So that the user name of a publisher that is gone is known.
            assert [each.type for each in converted.settings.authenticator] == (["trust"] if checked else [])

    def test_rules_of_some_listeners_are_not_asked_about_publishers_that_are_gone(self, conf: Path) -> None:
        text = "per_listener_settings true\nlistener 1883\nacl_file /a\nlistener 1884\n"
        converted = made(conf, text)
        assert not converted.settings.retained.check_publisher
        assert "withholds a retained message" in converted.guards


class TestBridges:
    def test_a_bridge(self, conf: Path) -> None:
        text = (
            "allow_anonymous true\nconnection to cloud\naddress broker.example.org:8883\n"
            "bridge_cafile /ca.pem\nbridge_certfile /c.pem\nbridge_keyfile /k.pem\n"
            "remote_username site7\nremote_password s3cret\nremote_clientid edge-7\n"
            "keepalive_interval 30\ncleansession true\nrestart_timeout 10 60\nbridge_protocol_version mqttv311\n"
            "notification_topic sites/7/up\n"
            "topic state/# out 1 site/ acme/7/\ntopic cmd/# in 2 site/ acme/7/\ntopic both/# both 1 site/ acme/7/\n"
        )
        converted = made(conf, text)
        (link,) = converted.settings.upstream
        assert (link.name, link.url) == ("to_cloud", "mqtts://broker.example.org:8883")
        assert (link.ca_file, link.cert_file, link.key_file) == ("/ca.pem", "/c.pem", "/k.pem")
        assert (link.username, link.password, link.client_id) == ("site7", "s3cret", "edge-7")
        assert (link.keep_alive, link.session_expiry, link.version) == (30, 0, "3.1.1")
        assert (link.retry_min, link.retry_max, link.status_topic) == (10.0, 60.0, "sites/7/up")
        assert link.subscribe == ("site/cmd/#", "site/both/#")
        assert link.publish == ("site/state/#", "site/both/#")
        assert (link.local_prefix, link.remote_prefix) == ("site/", "acme/7/")
        assert (link.subscribe_qos, link.publish_qos) == (2, 1)
        assert "a link has one QoS for all topics: here 2" in converted.missing
        assert converted.toml.count("s3cret") == 1

    def test_a_bridge_with_mosquittos_defaults(self, conf: Path) -> None:
        """By the identifier the upstream finds the session again, after a restart too."""
        (link,) = made(conf, "connection to cloud\naddress h\ntopic # in 1\n").settings.upstream
        name = f"{socket.gethostname()}.to"
        assert (link.client_id, link.clean_start, link.version) == (name, False, "3.1.1")
        assert link.status_topic == f"$SYS/broker/connection/{name}/state"

    @pytest.mark.parametrize("line", ["notifications false", "notifications_local_only true"])
    def test_a_bridge_that_tells_its_upstream_nothing(self, conf: Path, line: str) -> None:
        text = f"connection b\naddress h\ntopic a\nnotification_topic x\n{line}\n"
        (link,) = made(conf, text).settings.upstream
        assert link.status_topic == ""

    @pytest.mark.parametrize(("version", "told"), [("mqttv50", "canopy-via"), ("mqttv31", "no MQTT 3.1")])
    def test_what_is_different_with_a_version_is_named(self, conf: Path, version: str, told: str) -> None:
        assert told in made(conf, f"connection b\naddress h\ntopic a\nbridge_protocol_version {version}\n").missing

    def test_topics_with_other_prefixes_are_another_link(self, conf: Path) -> None:
        text = 'connection b\naddress h\nremote_clientid c\ntopic # out\ntopic x in 0 "" r/\ntopic y out 1 l/ r/\n'
        links = made(conf, text).settings.upstream
        assert [(each.name, each.client_id) for each in links] == [("b", "c"), ("b-2", "c-2"), ("b-3", "c-3")]
        assert [(each.local_prefix, each.remote_prefix) for each in links] == [("", ""), ("", "r/"), ("l/", "r/")]
        assert [each.subscribe for each in links] == [(), ("x",), ()]
        assert [each.publish for each in links] == [("#",), (), ("l/y",)]
        assert [each.clean_start for each in links] == [False] * 3

    def test_topics_in_quotation_marks(self, conf: Path) -> None:
        (link,) = made(conf, 'connection b\naddress ::1:1884\ntopic "with space/#" both 2 "" ""\n').settings.upstream
        assert link.url == "mqtt://[::1]:1884"
        assert link.publish == ("with space/#",)

    @pytest.mark.parametrize(
        "topic",
        [
            'topic "" out 0 local remote',
            "topic a out 0 l r/",
            "topic a sideways",
            "topic a in 3",
            "topic clients/total in 0 test/ $SYS/broker/",
            "topic a/#/b out",
        ],
    )
    def test_a_topic_that_no_link_can_have_is_named(self, conf: Path, topic: str) -> None:
        converted = made(conf, f"connection b\naddress h\n{topic}\n")
        assert converted.settings.upstream == ()
        assert converted.missing

    def test_a_bridge_is_not_made_without_its_encryption(self, conf: Path) -> None:
        converted = made(conf, "connection b\naddress h\nbridge_identity i\nbridge_psk aa00bb\ntopic # out\n")
        assert converted.settings.upstream == ()
        assert "pre-shared keys" in converted.guards
        assert "aa00bb" not in converted.toml + converted.guards

    def test_two_bridges_have_two_names(self, conf: Path) -> None:
        text = "connection a b\naddress h\ntopic x\nconnection a_b\naddress i\ntopic y\n"
        assert [each.name for each in made(conf, text).settings.upstream] == ["a_b", "a_b-2"]


class TestWhole:
    def test_every_option_of_the_manual_is_known(self) -> None:
        assert [option for option in MANUAL if meaning(option) is None] == []

    @for_each("option", [option for option in MANUAL if option not in ("include_dir", "listener")])
    def test_every_option_is_a_setting_or_named_with_a_reason(self, conf: Path, option: str) -> None:
        """Each alone, where it may stand: no line is lost without a word."""
        where = "connection b\naddress h\ntopic # out\n" if MANUAL[option].bridge else "listener 8883\n"
        if option in LISTENER_TLS:
            where += "certfile /c\nkeyfile /k\ncafile /ca\nrequire_certificate true\n"
        converted = made(conf, f"allow_anonymous true\n{where}{option} {MANUAL[option].example}\n")
        number = 2 + where.count("\n")
        assert f"mosquitto.conf:{number}: {option}" in converted.toml
        left = meaning(option)
        if isinstance(left, NotConverted) and first_word(MANUAL[option].example) != left.idle:
            assert left.text in converted.toml

    @pytest.mark.skipif(not EXAMPLES.exists(), reason="needs the examples of mosquitto")
    def test_the_example_of_mosquitto_with_all_its_options_on(self, conf: Path) -> None:
        """Each `#option value` of it, without the #."""
        lines = [line[1:] for line in EXAMPLES.read_text().splitlines() if line.startswith("#") and line[1:2].isalpha()]
        found = [line for line in lines if meaning(line.split()[0]) is not None]
        assert len(found) > 80
        converted = made(conf, "\n".join(line.replace("<", "").replace(">", "") for line in found))
        assert "no such option" not in converted.missing

    def test_the_defaults_that_are_named_as_different_are_the_defaults(self, conf: Path) -> None:
        head, there = made(conf, "").toml, defaults()
        for name, text in {
            "limits.max_packet_size": f"{there['limits.max_packet_size'] // 2**20} MiB",
            "mqtt.max_inflight": f"{there['mqtt.max_inflight']:,} messages",
            "queue.session_messages": f"{there['queue.session_messages']:,} messages",
            "session.max_expiry": {604_800: "a week"}[there["session.max_expiry"]],
            "session.takeover": {"same-user": "a session belongs to the user"}[there["session.takeover"]],
            "mqtt.topic_alias_maximum": str(there["mqtt.topic_alias_maximum"]),
        }.items():
            assert re.search(rf"^#   {name} +{text}", head, re.MULTILINE)

    def test_included_folders_come_in_their_order(self, conf: Path) -> None:
        folder = conf.parent / "conf.d"
        folder.mkdir()
        for at, name in enumerate(["b.conf", "A.conf", "01.conf", "a.conf", "B.conf", "00.conf", "c.txt"]):
            (folder / name).write_text(f"sys_interval {at + 1}\n")
        converted = made(conf, f"sys_interval 99\ninclude_dir {folder}\n")
        assert converted.settings.sys.interval == 1  # b.conf is the last
        assert "conf.d/b.conf:1: sys_interval 1" in converted.toml

    def test_a_listener_and_a_bridge_hold_for_the_lines_of_their_own_file(self, conf: Path) -> None:
        folder = conf.parent / "conf.d"
        folder.mkdir()
        (folder / "a.conf").write_text("listener 1884\nconnection b\naddress h\ntopic a\n")
        (folder / "b.conf").write_text("max_connections 7\nremote_clientid x\n")
        converted = made(conf, f"listener 1885\ninclude_dir {folder}\nmax_connections 5\n")
        most = {each.endpoint.port: each.max_connections for each in converted.settings.listener}
        assert most == {1883: 7, 1884: 0, 1885: 5}
        assert "conf.d/b.conf:2: remote_clientid x: missing: no connection stands above it" in converted.missing

    @pytest.mark.parametrize("content", [b"\xff", None])
    def test_a_file_that_cannot_be_read(self, conf: Path, content: bytes | None) -> None:
        if content is not None:
            conf.write_bytes(content)
        with pytest.raises(ConvertError, match=r"mosquitto\.conf: "):
            mosquitto.convert(conf)


class TestCommand:
    def run(self, conf: Path) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["convert", str(conf)])
        return result.exit_code, result.stdout, result.stderr

    def test_it_prints_what_check_config_takes(self, conf: Path, tmp_path: Path) -> None:
        (tmp_path / "passwd").write_text("")
        conf.write_text(f"listener 1883\npassword_file {tmp_path}/passwd\n")
        code, printed, told = self.run(conf)
        assert (code, told) == (0, "")
        path = tmp_path / "canopy.toml"
        path.write_text(printed)
        checked = CliRunner().invoke(app, ["check-config", str(path)])
        assert checked.exit_code == 0
        assert "OK" in checked.stdout

    def test_a_missing_guard_is_told_and_is_the_exit_code(self, conf: Path) -> None:
        conf.write_text("listener 1883\nmount_point a\npersistence true\n")
        code, printed, told = self.run(conf)
        assert code == 3
        assert "mount_point" in printed
        guard, _listener, step = told.splitlines()
        assert guard.startswith("canopy: mosquitto.conf:2: mount_point a: KEEPS SOMEBODY OUT")
        assert step.startswith("canopy: mosquitto.conf:3: persistence true: to do next: ")

    @pytest.mark.parametrize(
        ("line", "code"), [("retry_interval 5", 0), ("log_dest stderr", 3), ("bridge_alpn x", 3), ("sys_interval 5", 0)]
    )
    def test_what_the_settings_do_not_do_is_the_exit_code(self, conf: Path, line: str, code: int) -> None:
        conf.write_text(f"{line}\n")
        assert self.run(conf)[0] == code

    def test_a_file_that_is_not_there(self, conf: Path) -> None:
        code, printed, told = self.run(conf)
        assert (code, printed) == (2, "")
        assert told.startswith(f"canopy: {conf}: cannot be read")
