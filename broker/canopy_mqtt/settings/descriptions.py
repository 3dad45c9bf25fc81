"""Describes settings in messages: values as TOML without secrets, and the allowed values in words.

Owns `allowed`, which takes from the models what it can and the rest from `ALLOWED`; `show`; and `TABLES`, the settings
that are lists of tables.

Promises: a secret is never repeated, wherever in a value it stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from canopy_mqtt.settings.access.authenticators import TYPES
from canopy_mqtt.settings.access.rules import Rule
from canopy_mqtt.settings.brokers.cluster import FORMS as NODE_FORMS
from canopy_mqtt.settings.brokers.cluster import ClusterNode
from canopy_mqtt.settings.brokers.upstream import Upstream
from canopy_mqtt.settings.listeners import FORMS, Listener
from canopy_mqtt.settings.root import AllSettings
from canopy_mqtt.settings.sections import QueueRuleSettings
from canopy_mqtt.settings.urls import HIDDEN, shown
from canopy_mqtt.settings.values import MAX_PACKET, Section

Steps: TypeAlias = tuple[str | int, ...]
"""The path of a value: names of tables and keys, and the numbers of items from 0: ("listener", 1, "tls", "key")."""

MAX_SHOWN_LENGTH: Final = 80
"""Characters of a wrong value that a message repeats."""

MAX_DECIMAL_BITS: Final = 10_000
"""Bits of a whole number that is written in decimal digits: Python refuses to write more than 4,300 of them."""

TABLES: Final[Mapping[str, type[Section] | Mapping[str, type[Section]]]] = {
    "queue.rules": QueueRuleSettings,
    "cluster.nodes": ClusterNode,
    "listener": Listener,
    "upstream": Upstream,
    "authenticator": TYPES,
    "rule": Rule,
}
"""The settings that are lists of tables, with the model of a table; by its key `type` if there are several."""

SECRETS: Final = frozenset({"password", "secret", "key_password", "headers"})
"""Keys whose values are not repeated."""

A_RULE: Final = '{client_id = "display-*", policy = "latest"}'

A_LISTENER: Final = '{url = "mqtt://0.0.0.0:1883", max_connections = 1000}'

A_LINK: Final = '{name = "cloud", url = "mqtt://broker.example.org"}'

AN_AUTHENTICATOR: Final = '{type = "password-file", path = "/etc/canopy/passwd"}'

AN_ACCESS_RULE: Final = '{user = "sensor-*", action = "publish", filters = ["sensors/{user}/#"]}'

A_NODE: Final = '{name = "b", address = "mqtts://b.example.org:8884"}'

A_NAME: Final = '1 to 64 letters, digits, "_" and "-", like '

A_FILE: Final = 'a file, like "/etc/canopy/'
A_PATTERN: Final = "a shell pattern or a list of them, like "
PATTERNS: Final = 'a list of shell patterns, like ["site-*"]'
FILTERS: Final = 'a list of topic filters, like ["sensors/#"]'
A_FILTER: Final = 'a topic filter, like "sensors/#"'
ABOVE_0: Final = "a number above 0, to 86400.0"

# Where the bounds alone do not tell what is allowed. `[]` is any item of a list.
ALLOWED: Final = {
    "listen": 'a list of URLs, like ["mqtt://127.0.0.1:1883"]',
    "hooks": 'a list of plug-ins, like ["my_company.mqtt:Hooks"]',
    "limits.max_client_id_length": "0, or an integer from 23 to 65535",
    "limits.max_packet_size": f"0, or an integer from 2 to {MAX_PACKET}",
    "queue.rules": f"[[queue.rules]] tables, or a list of them, like [{A_RULE}]",
    "queue.rules[]": f"a table, like {A_RULE}",
    "queue.rules[].client_id": 'a shell pattern, like "display-*"',
    "queue.rules[].user": 'a shell pattern, like "kiosk*"',
    "queue.rules[].topic_filter": 'a topic filter, like "sensors/#"',
    "access.acl_file": A_FILE + 'acl", or "" for none',
    "rule": f"[[rule]] tables, or a list of them, like [{AN_ACCESS_RULE}]",
    "rule[]": f"a table, like {AN_ACCESS_RULE}",
    "rule[].user": A_PATTERN + '"sensor-*"',
    "rule[].group": A_PATTERN + '"staff"',
    "rule[].client_id": A_PATTERN + '"display-*"',
    "rule[].listener": A_PATTERN + '"mqtts://*"',
    "rule[].address": 'IP addresses or networks, like "10.0.0.0/8" or ["10.0.0.0/8", "fd00::/8"]',
    "rule[].action": '"publish", "subscribe", "receive" or "all", or a list of them',
    "rule[].retain": 'true, false or "any"',
    "rule[].filters": 'a topic filter or a list of them, like ["sensors/{user}/#"]',
    "store.path": 'a folder, like "/var/lib/canopy", or "" for memory only',
    "store.url": 'a database, like "postgresql://canopy@localhost/canopy", or "" for none',
    "store.name": 'the name of a schema, like "canopy"',
    "recorder.directory": 'a folder, like "/var/lib/canopy/record", or "" for none',
    "recorder.filters": FILTERS,
    "recorder.filters[]": A_FILTER,
    "listener": f"[[listener]] tables, or a list of them, like [{A_LISTENER}]",
    "listener[]": f"a table, like {A_LISTENER}",
    "listener[].url": f'{FORMS}, like "mqtt://0.0.0.0:1883"',
    "listener[].name": 'text, like "internal", or "" for the URL',
    "listener[].mode": 'the mode of a file in octal digits, like "0660"',
    "listener[].group": 'a group by name or number, like "mqtt", or "" for the broker\'s',
    "listener[].max_packet_size": f"0, or an integer from 2 to {MAX_PACKET}",
    "listener[].authenticators": 'a list of names, like ["passwords"]',
    "listener[].authenticators[]": 'the name of an authenticator, like "passwords"',
    "listener[].path": 'a path, like "/mqtt", or "" for any',
    "listener[].origins": 'a list of origins, like ["https://example.org"]',
    "listener[].origins[]": 'an origin, like "https://example.org"',
    "listener[].proxy_from": 'a list of networks, like ["127.0.0.1/32"]',
    "listener[].proxy_from[]": 'a network, like "10.0.0.0/8" or "192.0.2.7/32"',
    "listener[].tls": "a table [listener.tls] with certificate and key",
    "listener[].tls.certificate": A_FILE + 'server.pem"',
    "listener[].tls.key": A_FILE + 'server.key"',
    "listener[].tls.key_password": 'text, or "" for none',
    "listener[].tls.more": "a list of at most 1000 tables with certificate and key",
    "listener[].tls.more[]": "a table with certificate and key",
    "listener[].tls.more[].certificate": A_FILE + 'other.pem"',
    "listener[].tls.more[].key": A_FILE + 'other.key"',
    "listener[].tls.more[].key_password": 'text, or "" for none',
    "listener[].tls.ciphers": 'cipher suites as OpenSSL writes them, like "ECDHE+AESGCM", or "" for its own choice',
    "listener[].tls.client_ca": A_FILE + 'clients.pem"',
    "listener[].tls.crl": A_FILE + 'revoked.pem", or "" for none',
    "listener[].tls.chain": A_FILE + 'chain.pem", or "" for none',
    "listener[].tls.alpn": 'a list of protocol names, like ["mqtt"]',
    "listener[].tls.alpn[]": 'a protocol name, like "mqtt"',
    "listener[].tls.handshake_timeout": ABOVE_0,
    "upstream": f"[[upstream]] tables, or a list of them, like [{A_LINK}]",
    "upstream[]": f"a table, like {A_LINK}",
    "upstream[].name": '1 to 64 letters, digits, "_" and "-", like "cloud"',
    "upstream[].url": 'mqtt://HOST[:PORT] or mqtts://HOST[:PORT], like "mqtt://broker.example.org"',
    "upstream[].username": 'text, like "site-7", or "" for none',
    "upstream[].password": 'text, or "" for none',
    "upstream[].password_file": A_FILE + 'cloud.password", or "" for none',
    "upstream[].ca_file": A_FILE + 'ca.pem", or "" for what the system trusts',
    "upstream[].cert_file": A_FILE + 'site-7.pem", or "" for none',
    "upstream[].key_file": A_FILE + 'site-7.key", or "" for none',
    "upstream[].client_id": 'text, like "site-7", or "" for one made of broker id and name',
    "upstream[].subscribe": f'"demand", or {FILTERS}',
    "upstream[].subscribe[]": A_FILTER,
    "upstream[].aggregate": f'"auto", or {FILTERS}',
    "upstream[].aggregate[]": A_FILTER,
    "upstream[].roots": FILTERS,
    "upstream[].roots[]": A_FILTER,
    "upstream[].unfolded": FILTERS,
    "upstream[].unfolded[]": A_FILTER,
    "upstream[].publish": FILTERS,
    "upstream[].publish[]": A_FILTER,
    "upstream[].local_prefix": '"", or whole levels that end in "/", like "site/7/"',
    "upstream[].remote_prefix": '"", or whole levels that end in "/", like "site/7/"',
    "upstream[].retry_min": ABOVE_0,
    "upstream[].retry_max": ABOVE_0,
    "upstream[].status_topic": 'a topic name, like "sites/7/up", or "" for none',
    "authenticator": f"[[authenticator]] tables, or a list of them, like [{AN_AUTHENTICATOR}]",
    "authenticator[]": f"a table, like {AN_AUTHENTICATOR}",
    "authenticator[].type": " or ".join(f'"{each}"' for each in TYPES),
    "authenticator[].name": '1 to 64 letters, digits, "_" and "-", like "staff", or "" for its type',
    "authenticator[].path": A_FILE + 'passwd"',
    "authenticator[].secret": 'text of at least 32 bytes, or "" for none',
    "authenticator[].secret_file": A_FILE + 'jwt.secret", or "" for none',
    "authenticator[].key_file": A_FILE + 'jwt.pem", or "" for none',
    "authenticator[].jwks": 'a file or a URL, like "https://id.example.org/jwks.json", or "" for none',
    "authenticator[].jwks_ca_file": A_FILE + 'ca.pem", or "" for what the system trusts',
    "authenticator[].jwks_refresh": ABOVE_0,
    "authenticator[].jwks_min_interval": ABOVE_0,
    "authenticator[].jwks_timeout": ABOVE_0,
    "authenticator[].audience": 'a list of audiences, like ["mqtt.example.org"]',
    "authenticator[].issuer": 'a list of issuers, like ["https://id.example.org/"]',
    "authenticator[].user_claim": 'the name of a claim, like "sub", or "" for none',
    "authenticator[].client_id_claim": 'the name of a claim, like "client_id", or "" for none',
    "authenticator[].groups_claim": 'the name of a claim, like "groups", or "" for none',
    "authenticator[].rules_claim": 'the name of a claim, like "acl", or "" for none',
    "authenticator[].url": 'a URL, like "https://auth.example.org/mqtt"',
    "authenticator[].headers": 'a list of headers, like ["Authorization: Bearer …"]',
    "authenticator[].ca_file": A_FILE + 'ca.pem", or "" for what the system trusts',
    "authenticator[].cert_file": A_FILE + 'broker.pem", or "" for none',
    "authenticator[].timeout": ABOVE_0,
    "security.client_ids": 'a list of patterns, like ["{user}-*"]',
    "security.client_ids[]": 'a pattern, like "{user}-*"',
    "security.ban_exempt": 'a list of IP addresses and networks, like ["10.0.0.0/8"]',
    "security.authentication_timeout": "a number above 0, to 3600.0",
    "security.ban_time": "a number above 0, to 2592000.0",
    "federation.broker_id": '1 to 32 letters, digits, "_" and "-", like "site-7", or "" for a random one',
    "federation.link_users": PATTERNS,
    "federation.link_users[]": 'a shell pattern, like "site-*"',
    "federation.link_client_ids": PATTERNS,
    "federation.link_client_ids[]": 'a shell pattern, like "site-*"',
    "mqtt.auto_id_prefix": 'text of at most 200 bytes, like "canopy-", or "" for none',
    "mqtt.versions": 'a list of versions, like ["3.1.1", "5.0"]',
    "cluster.name": A_NAME + '"plant", or "" for no cluster',
    "cluster.node": A_NAME + '"a"',
    "cluster.listen": f"{NODE_FORMS}",
    "cluster.nodes": f"[[cluster.nodes]] tables, or a list of them, like [{A_NODE}]",
    "cluster.nodes[]": f"a table, like {A_NODE}",
    "cluster.nodes[].name": A_NAME + '"b"',
    "cluster.nodes[].address": f"{NODE_FORMS}",
    "cluster.ca_file": A_FILE + 'cluster-ca.pem", or "" for none',
    "cluster.cert_file": A_FILE + 'node-a.pem", or "" for none',
    "cluster.key_file": A_FILE + 'node-a.key", or "" for none',
    "presence.topic": 'a topic name, like "canopy/presence", or "" for none',
}

BARE_KEY: Final = re.compile("[A-Za-z0-9_-]+")
"""A key that TOML allows without quotes."""


def show(value: Any) -> str:
    """Format a value as in a settings file, shortened for a message, without passwords."""
    return cut("a table" if isinstance(value, Mapping) else to_toml(value))


def to_toml(value: Any) -> str:
    """Format a value as TOML, on one line, without passwords; of a model, the keys that are set."""
    if isinstance(value, str):
        return json.dumps(shown(value), ensure_ascii=False)
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(to_toml(item) for item in value)}]"
    if isinstance(value, Section):
        value = value.model_dump(exclude_defaults=True)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_toml_key(key)} = {_toml_item(key, item)}' for key, item in value.items())}}}"
    if isinstance(value, int) and value.bit_length() > MAX_DECIMAL_BITS:
        return hex(value)  # Python refuses to write it in decimal
    return str(value)


def _toml_item(key: Any, value: Any) -> str:
    return HIDDEN if key in SECRETS else to_toml(value)


def _toml_key(key: Any) -> str:
    return str(key) if BARE_KEY.fullmatch(str(key)) else to_toml(str(key))


def cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[:MAX_SHOWN_LENGTH]}…"


def inner_model(model: type[BaseModel], key: str) -> type[BaseModel]:
    field = model.model_fields[key]
    annotation, _ = _plain(field.annotation, field.metadata)
    if get_origin(annotation) is Sequence:
        annotation, _ = _plain(get_args(annotation)[0], [])
    assert isinstance(annotation, type)
    assert issubclass(annotation, BaseModel)
    return annotation


def allowed(name: str) -> str:
    """Describe the allowed values of the setting with this full name. `name[]` is an item of a list."""
    if name in ALLOWED:
        return ALLOWED[name]
    model: type[BaseModel] = AllSettings
    annotation: Any = None
    metadata: list[Any] = []
    names = name.split(".")
    for key, inside in zip(names, [*names[1:], ""], strict=True):
        types = TABLES.get(key.removesuffix("[]"))
        if isinstance(types, Mapping):
            model = next(each for each in types.values() if inside.removesuffix("[]") in each.model_fields)
            continue
        field = model.model_fields[key.removesuffix("[]")]
        annotation, metadata = _plain(field.annotation, field.metadata)
        if key.endswith("[]"):
            annotation, metadata = _plain(get_args(annotation)[0], [])
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return _in_words(annotation, metadata)


def is_known(steps: Sequence[int | str]) -> bool:
    """Return True if a path leads to a setting, or to a key or an item of one."""
    name = ".".join(str(step) for step in steps)
    try:
        allowed(re.sub(r"\.\d+", "[]", name))
    except (KeyError, StopIteration):
        return False
    return True


def _plain(annotation: Any, metadata: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Strip `Annotated` and `| None` from a type. Returns the type, and the metadata."""
    noted = list(metadata)
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation, *more = get_args(annotation)
            for note in more:
                noted += note.metadata if isinstance(note, FieldInfo) else [note]
        elif origin in (Union, UnionType):
            annotation = next(choice for choice in get_args(annotation) if choice is not NoneType)
        else:
            return annotation, noted


def _in_words(annotation: Any, metadata: Sequence[Any]) -> str:
    if annotation is bool:
        return "true or false"
    if get_origin(annotation) is Literal:
        return " or ".join(show(choice) for choice in get_args(annotation))
    if get_origin(annotation) is Sequence:
        return f"a list of {_in_words(*_plain(get_args(annotation)[0], []))}"
    if annotation is str:
        return "text in quotes"
    noun = "an integer" if annotation is int else "a number"
    return f"{noun} {_bounds(metadata)}"


def _bounds(metadata: Sequence[Any]) -> str:
    low = high = ""
    for bound in metadata:
        if isinstance(bound, Ge):
            low = f"from {bound.ge}"
        elif isinstance(bound, Le):
            high = f"to {bound.le}"
    return " ".join(part for part in (low, high) if part)
