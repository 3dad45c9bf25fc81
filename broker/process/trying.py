"""The two commands that a started broker prints for trying it: `mosquitto_sub` and `mosquitto_pub`.

Owns which listener they use, as which user, and on which topic. Promises: the commands work as they are printed, except
for the password; if no such commands are known, there are none. Reads files: for a thread.
"""

from __future__ import annotations

import datetime
import ipaddress
import shlex
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from broker.core.principal import Principal
from broker.security.client_ids import belongs
from broker.security.errors import SecurityError
from broker.security.rules.book import RuleBook
from broker.security.rules.rule import PUBLISH, RECEIVE
from broker.settings import (
    DEFAULT_PORT,
    AnonymousTable,
    Endpoint,
    Listener,
    PasswordFileTable,
    Settings,
    Tls,
    called,
    parse_endpoint,
)

TRIED: Final = ("mqtt", "mqtt+unix", "mqtts")
"""The schemes of listeners that mosquitto's clients reach; what takes the fewest options comes first."""

MAX_USERS: Final = 20
"""Users of a password file for whom a topic is looked for."""

FIRST: Final = "demo/#"
"""The topic filter that is tried before those of the rules."""

ROLES: Final = ("sub", "pub")


class Subject(NamedTuple):
    """What can be published and received: by `topic_filter` and `topic`."""

    topic_filter: str
    topic: str


def lines_to_try(settings: Settings, listening: Sequence[str]) -> list[str]:
    """The two commands, or nothing. `listening`: the URLs of the listeners of the settings, with their real ports."""
    try:
        found = next(_found(settings, listening), None)
    except (OSError, ValueError, SecurityError):
        # What cannot be read has its own line.
        return []
    return [] if found is None else list(found)


def _found(settings: Settings, listening: Sequence[str]) -> Iterator[tuple[str, str]]:
    book = RuleBook(settings)
    places = [(listener, parse_endpoint(url)) for listener, url in zip(settings.listeners, listening, strict=False)]
    for scheme in TRIED:
        for listener, endpoint in places:
            where = _where(listener, endpoint) if endpoint.scheme == scheme else None
            if where is None:
                continue
            for user in _users(settings, listener):
                ids = _client_ids(settings, user)
                subject = None if ids is None else _subject(book, listener, user, ids)
                if ids is not None and subject is not None:
                    yield _commands([*where, *_version(settings)], user, ids, subject)


def _commands(where: Sequence[str], user: str | None, ids: Sequence[str], subject: Subject) -> tuple[str, str]:
    """The two commands."""
    login = [] if user is None else ["-u", user, "-P", "PASSWORD"]
    sub, pub = (shlex.join([*where, *(["-i", name] if name else []), *login]) for name in ids)
    return (
        f"mosquitto_sub {sub} -t {shlex.quote(subject.topic_filter)} -v",
        f"mosquitto_pub {pub} -t {shlex.quote(subject.topic)} -m 'hello world'",
    )


# -- the listener ------------------------------------------------------------------------------------------------------


def _where(listener: Listener, endpoint: Endpoint) -> list[str] | None:
    """The options that reach a listener from this machine; None: these clients cannot come in there."""
    if listener.proxy_protocol != "none":
        return None
    if endpoint.path:
        return ["--unix", endpoint.path]
    host = {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}.get(endpoint.host, endpoint.host)
    port = [] if endpoint.port == DEFAULT_PORT else ["-p", str(endpoint.port)]
    if not endpoint.tls:
        return ["-h", host, *port]
    if listener.tls is None or listener.tls.client_certificates == "required":
        return None
    named = _trusted(listener.tls)
    name = _name(host, named, everywhere=host != endpoint.host)
    return None if name is None else ["-h", name, "-p", str(endpoint.port), "--cafile", listener.tls.certificate]


def _trusted(tls: Tls) -> list[str]:
    """The names that a certificate is made out to, where its own file is enough to trust it; else none."""
    from cryptography import x509

    chain = x509.load_pem_x509_certificates(Path(tls.certificate).read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    last = chain[-1]
    if last.issuer != last.subject or not all(
        each.not_valid_before_utc <= now <= each.not_valid_after_utc for each in chain
    ):
        return []
    try:
        names = chain[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [str(each.value) for each in chain[0].subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    return [
        *names.get_values_for_type(x509.DNSName),
        *(str(address) for address in names.get_values_for_type(x509.IPAddress)),
    ]


def _name(host: str, names: Sequence[str], *, everywhere: bool) -> str | None:
    """The host to connect to, of those in a certificate. `everywhere`: the listener is on every interface."""
    here = ["localhost", "127.0.0.1", "::1"] if everywhere or _is_loopback(host) else []
    for name in [host, *here]:
        if name in names:
            return name
    if here and not everywhere:
        return None
    return next((name for name in names if "*" not in name), None)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _version(settings: Settings) -> list[str]:
    versions = settings.mqtt.versions
    return [] if "3.1.1" in versions else ["-V", "mqttv5" if "5.0" in versions else "mqttv31"]


# -- the user ----------------------------------------------------------------------------------------------------------


def _users(settings: Settings, listener: Listener) -> Iterator[str | None]:
    """Who may come in; None: a client without a user name."""
    tables = [
        each
        for each in settings.authenticator
        if not listener.authenticators or called(each) in listener.authenticators
    ]
    anybody = listener.allow_anonymous
    if anybody is None and not settings.mqtt.allow_anonymous:
        anybody = False
    if anybody is None:
        anybody = not tables or any(isinstance(each, AnonymousTable) for each in tables)
    if anybody:
        yield None
    for table in tables:
        if isinstance(table, PasswordFileTable):
            yield from _named(Path(table.path))


def _named(file: Path) -> list[str]:
    with file.open(encoding="utf-8") as opened:
        names = (line.partition(":")[0].strip() for line in opened if not line.startswith("#") and ":" in line)
        return [name for name in islice(names, MAX_USERS) if name.isprintable()]


def _client_ids(settings: Settings, user: str | None) -> list[str] | None:
    """The client identifiers of the two clients, empty: the broker chooses; None: none may be used."""
    if settings.mqtt.allow_empty_client_id:
        return ["", ""]
    patterns = settings.security.client_ids or ("try-*",)
    for pattern in patterns:
        ids = [pattern.replace("*", role).replace("{user}", user or "") for role in ROLES]
        if "*" in pattern and all(belongs(each, user, patterns) for each in ids):
            return ids
    return None


# -- the topic ---------------------------------------------------------------------------------------------------------


def _subject(book: RuleBook, listener: Listener, user: str | None, ids: Sequence[str]) -> Subject | None:
    """What the user may subscribe to and publish; None: nothing is known."""
    if listener.mount and book.says_anything:
        return None
    reader, writer = (Principal(user, client_id=name, listener=listener.called, host="127.0.0.1") for name in ids)
    for topic_filter in [FIRST, *book.allowed_filters(reader)]:
        if topic_filter.startswith("$"):
            continue
        levels = ["hello" if level == "#" else "demo" if level == "+" else level for level in topic_filter.split("/")]
        topic = "/".join(levels)
        if (
            book.about_filter(reader, topic_filter).allowed
            and book.about(reader, RECEIVE, topic).allowed
            and book.about(writer, PUBLISH, topic).allowed
        ):
            return Subject(topic_filter, topic)
    return None
