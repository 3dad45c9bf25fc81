"""All options of mosquitto's manual in combinations: no line is lost, and nobody comes in who did not before.

Owns what "a setting in force" means in the written file, and a second reading of who comes in to which listener of a
mosquitto.conf, which knows nothing of the converter's.
"""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.convert import mosquitto
from canopy_mqtt.convert.mosquitto import Converted
from canopy_mqtt.settings import Listener, Settings, called
from canopy_mqtt.settings.loader import load_settings
from tests.convert.manual import MANUAL

BRIDGE: Final = [option for option, what in MANUAL.items() if what.bridge and option not in ("connection", "topic")]
OTHERS: Final = [
    option for option, what in MANUAL.items() if not what.bridge and option not in ("include_dir", "listener", "port")
]

VALUES: Final = {
    "allow_anonymous": ["true", "false"],
    "enable_proxy_protocol": ["1", "2", "3"],
    "mount_point": ["a/", "a", "$x/"],
    "protocol": ["mqtt", "websockets", "http_api"],
    "clientid_prefixes": ["c-", "c*", "{user}"],
    "accept_protocol_versions": ["4,5", "3", "5", "6"],
    "per_listener_settings": ["true", "false", "maybe"],
    "bind_interface": ["lo", "eth0"],
    "socket_domain": ["ipv4", "ipv6", "ipx"],
    "notification_topic": ["n", "$SYS/x"],
    "bridge_protocol_version": ["mqttv50", "mqttv311", "mqttv31", "mqttv9"],
}

HEAD: Final = re.compile(r"^#   (\S+:\d+): ", re.MULTILINE)


def values(option: str) -> st.SearchStrategy[str]:
    """What may stand behind an option, good or bad."""
    example = MANUAL[option].example
    switch = ["true", "false", "1", "0"] if example in ("true", "false") else []
    return st.sampled_from([example, *switch, *VALUES.get(option, ()), "", "-1", "none of it"])


def some(options: list[str]) -> st.SearchStrategy[list[str]]:
    """A few lines with some of the options."""
    line = st.sampled_from(options).flatmap(lambda option: values(option).map(lambda value: f"{option} {value}"))
    return st.lists(line, max_size=7)


GUARDS: Final = st.lists(
    st.sampled_from(
        (
            "acl_file /acl",
            "allow_anonymous true",
            "enable_proxy_protocol 2",
            "listener_allow_anonymous true",
            "mount_point a/",
            "password_file /p",
            "plugin /x.so",
            "proxy_protocol_v2_require_tls true",
            "psk_hint h",
            "require_certificate true",
            "use_identity_as_username true",
            "use_username_as_clientid true",
        )
    ),
    max_size=4,
)
LISTENERS: Final = st.lists(st.tuples(st.booleans(), GUARDS, some(OTHERS)), max_size=3)
BRIDGES: Final = st.lists(some(BRIDGE), max_size=2)


@st.composite
def confs(draw: st.DrawFn) -> list[str]:
    """A whole file: options above all, some listeners with theirs, and some bridges."""
    lines = [*(["per_listener_settings true"] if draw(st.booleans()) else []), *draw(some(OTHERS))]
    for at, (secure, guards, own) in enumerate(draw(LISTENERS)):
        pair = ["certfile /c", "keyfile /k", "cafile /ca"] if secure else []
        lines += [f"listener {1884 + at}", *pair, *guards, *own]
    for at, own in enumerate(draw(BRIDGES)):
        lines += [f"connection b{at}", "address h", "topic a/# both 1", *own]
    return lines


def in_force(toml: str) -> set[str]:
    """The places of lines that settings come from which are not commented out."""
    found: set[str] = set()
    places: list[str] = []
    for line in toml.splitlines():
        place = re.match(r"# ([^\s#]\S*:\d+): ", line)
        if place:
            places.append(place[1])
        elif not line:
            places = []
        elif not line.startswith("#"):
            found.update(places)
            places = []
    return found


def lost(lines: list[str], converted: Converted) -> list[str]:
    """The lines that are neither a setting in force, nor named at the head and to the reader."""
    head = set(HEAD.findall(converted.toml))
    named = {told.split(": ")[0] for told in (*converted.guards, *converted.missing, *converted.hints)}
    settled = in_force(converted.toml) | (head & named)
    return [f"{at}: {line}" for at, line in enumerate(lines, start=1) if f"m.conf:{at}" not in settled]


def convert(lines: list[str], folder: str) -> tuple[Converted, Settings]:
    conf, toml = Path(folder) / "m.conf", Path(folder) / "canopy.toml"
    conf.write_text("\n".join(lines) + "\n")
    converted = mosquitto.convert(conf)
    toml.write_text(converted.toml)
    return converted, load_settings(toml, environ={})


class Own(NamedTuple):
    """What stands in a mosquitto.conf for one listener, the last line of each option; and above all listeners."""

    options: dict[str, str]
    above: dict[str, str]

    def on(self, option: str) -> bool:
        return self.options.get(option) in ("true", "1")


def listeners(lines: list[str]) -> Iterator[tuple[str, Own]]:
    """The listeners by port. With `per_listener_settings` what is about access is a listener's own; else the last."""
    whole: dict[str, str] = {}
    own: dict[str, dict[str, str]] = {"1883": {}}
    port, scoped = "1883", False
    for line in lines:
        option, _, value = line.partition(" ")
        if option == "per_listener_settings":
            scoped = scoped or value != "false"
        if option == "listener":
            port = value
            own[port] = {}
        elif (
            option in ("allow_anonymous", "password_file", "acl_file", "plugin", "auth_plugin") and not scoped
        ) or option in ("global_plugin", "plugin_load", "clientid_prefixes"):
            whole[option] = value
        else:
            own[port][option] = value
    return ((port, Own({**whole, **options} if not scoped else options, whole)) for port, options in own.items())


def comes_in_by_name(listener: Listener, settings: Settings) -> bool:
    """Whether a client with any user name and password is accepted."""
    asked = [each for each in settings.authenticator if called(each) in (listener.authenticators or [called(each)])]
    return not settings.authenticator or any(each.type == "trust" for each in asked)


def comes_in_without_name(listener: Listener, settings: Settings) -> bool:
    if listener.allow_anonymous is not None:
        return listener.allow_anonymous
    return settings.mqtt.allow_anonymous and not settings.authenticator


def opened(lines: list[str], settings: Settings) -> Iterator[str]:
    """What a listener lets in that mosquitto did not, in words."""
    alone = not any(line.startswith(("listener ", "bind_address ")) for line in lines)
    there = {str(each.endpoint.port): each for each in settings.listener}
    for each in () if there else settings.listeners:
        if comes_in_by_name(each, settings) or comes_in_without_name(each, settings):
            yield "no listener is left, and Canopy's own lets clients in"
    for port, own in listeners(lines):
        listener = there.get(port)
        if listener is None:
            continue
        secure = {"certfile", "keyfile"} <= own.options.keys()
        free = own.options.get("listener_allow_anonymous", own.options.get("allow_anonymous"))
        anonymous = free in ("true", "1") or (free is None and alone)
        identity = own.on("use_identity_as_username") or own.on("use_subject_as_username")
        plugged = {"plugin", "auth_plugin"} & own.options.keys() or {"global_plugin", "plugin_load"} & own.above.keys()
        unchecked = anonymous and not identity and not plugged and not own.options.get("password_file")
        if listener.tls is None and secure:
            yield f"{port}: plain"
        asks = listener.tls is not None and listener.tls.client_certificates == "required"
        if own.on("require_certificate") and secure and "enable_proxy_protocol" not in own.options and not asks:
            yield f"{port}: without a certificate"
        if own.options.get("enable_proxy_protocol") == "2" and (
            own.on("require_certificate") or own.on("proxy_protocol_v2_require_tls") or identity
        ):
            yield f"{port}: behind a proxy without a certificate"
        if "psk_hint" in own.options:
            yield f"{port}: without its key"
        if comes_in_by_name(listener, settings) and not unchecked:
            yield f"{port}: under any name"
        if comes_in_without_name(listener, settings) and (
            not anonymous or identity or plugged or own.on("use_username_as_clientid")
        ):
            yield f"{port}: without a name"
        if own.options.get("mount_point") and not listener.mount:
            yield f"{port}: out of its mount"
        if own.options.get("acl_file") and not settings.access.acl_file and settings.access.default != "deny":
            yield f"{port}: without rules"
        if own.options.get("acl_file") and any(listener.label in rule.listener for rule in settings.rule):
            yield f"{port}: by a rule for others"
        if plugged and settings.access.default != "deny" and not settings.access.acl_file:
            yield f"{port}: without the rules of a plug-in"
        if own.above.get("clientid_prefixes") and not settings.security.client_ids:
            yield f"{port}: under any identifier"


@given(confs())
def test_no_line_is_lost_and_nobody_comes_in_who_did_not(lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        converted, settings = convert(lines, folder)
    assert lost(lines, converted) == []
    assert list(opened(lines, settings)) == []


@pytest.mark.long
def test_no_line_of_any_two_options_is_lost(tmp_path: Path) -> None:
    """Each pair of options at one listener, or at one bridge."""
    found: list[str] = []
    for options, before in (
        (OTHERS, ["listener 1884"]),
        (OTHERS, ["allow_anonymous true", "listener 1884", "certfile /c", "keyfile /k"]),
        (BRIDGE, ["connection b", "address h", "topic a/# both 1"]),
    ):
        for pair in itertools.combinations(options, 2):
            lines = [*before, *(f"{option} {MANUAL[option].example}" for option in pair)]
            (tmp_path / "m.conf").write_text("\n".join(lines) + "\n")
            found += lost(lines, mosquitto.convert(tmp_path / "m.conf"))
    assert found == []
