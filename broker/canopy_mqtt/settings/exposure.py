"""Settings that let in more people than they seem to: reported at the start and by `canopy check-config`."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network
from urllib.parse import urlsplit

from canopy_mqtt.settings import HttpTable, JwtTable, Listener, Settings, called, is_loopback
from canopy_mqtt.settings.access.authenticators import AnyTable
from canopy_mqtt.settings.access.tokens import in_clear, is_url


def exposed(settings: Settings, authenticated: bool = False) -> Iterator[str]:
    """Yield one line for each setting that admits more clients than it seems to.

    `authenticated`: the program that embeds the broker checks who clients are (`authenticators`, `access_control`,
    `auth_methods`).
    """
    yield from _certificates(settings)
    yield from _services(settings)
    yield from _in_clear(settings)
    yield from _any_proxy(settings)
    checked = authenticated or bool(settings.authenticator)
    if not settings.mqtt.allow_anonymous and not checked:
        yield (
            "mqtt.allow_anonymous = false has no effect: nothing checks user names and passwords, so any "
            "user name with any password is accepted. Add an [[authenticator]]"
        )
    if (
        not settings.mqtt.allow_anonymous
        and any(table.type == "anonymous" for table in settings.authenticator)
        and not any(admits_anonymous(listener, settings) for listener in settings.listeners)
    ):
        yield 'the authenticator of the type "anonymous" accepts no client: mqtt.allow_anonymous is false'
    if not checked:
        yield from _unproven(settings)
    yield from _unbound(settings)
    if settings.shares_sessions:
        yield '[cluster] with store.url is experimental: docs/cluster.md, "With one database", says what does not hold'
    for listener in settings.listeners:
        if not _others_reach(listener):
            continue
        where = f'{"listener" if listener in settings.listener else "listen"} "{listener.label}"'
        if not checked and not _asks_for_certificates(listener):
            yield (
                f"{where}: other machines may reach it, and clients are not authenticated: everybody who reaches it "
                "can read and publish everything. Add an [[authenticator]], use a firewall, or listen on 127.0.0.1"
            )
        elif not authenticated and any(table.type == "trust" for table in authenticators_of(listener, settings)):
            yield (
                f'{where}: other machines may reach it, and the authenticator of the type "trust" accepts any user '
                "name without a check. Remove it, or listen on 127.0.0.1"
            )
        elif settings.authenticator and not authenticated and _may_do_anything_unnamed(listener, settings):
            yield (
                f"{where}: other machines may reach it, and clients without a user name can read and publish "
                "everything. Add a [[rule]] with anonymous = true that says what they may do; then everything else "
                "is denied"
            )
        elif listener.tls is None and _sends_passwords(listener, settings):
            yield (
                f"{where}: other machines may reach it without TLS, so passwords cross the network unencrypted. Use "
                "mqtts:// or wss://"
            )


def authenticators_of(listener: Listener, settings: Settings) -> list[AnyTable]:
    named = listener.authenticators
    return [table for table in settings.authenticator if not named or called(table) in named]


def admits_anonymous(listener: Listener, settings: Settings) -> bool:
    """Return True if a listener accepts clients without a user name, as far as the settings say."""
    if listener.allow_anonymous is not None:
        return listener.allow_anonymous
    asked = authenticators_of(listener, settings)
    admitting = ("anonymous", "trust")
    return settings.mqtt.allow_anonymous and (not asked or any(table.type in admitting for table in asked))


def _unproven(settings: Settings) -> Iterator[str]:
    for at, rule in enumerate(settings.rule):
        if rule.user or rule.group or rule.anonymous is not None or any("{user}" in each for each in rule.filters):
            where = f"rule[{at}]"
            break
    else:
        where = "access.acl_file" if settings.access.acl_file else ""
        if any("{user}" in each for each in settings.security.client_ids):
            where = "security.client_ids"
        for at, listener in enumerate(settings.listener):
            if "{user}" in listener.mount:
                where = f"listener[{at}].mount"
    if where:
        yield f"{where} depends on user names, but nothing checks them: a client may use any. Add an [[authenticator]]"


def _unbound(settings: Settings) -> Iterator[str]:
    for at, listener in enumerate(settings.listener):
        if "{client}" in listener.mount and "{user}" not in listener.mount and not settings.security.client_ids:
            yield (
                f"listener[{at}].mount depends on client identifiers, but a client may use any: set "
                "security.client_ids, or also use {user} in the mount"
            )


def _may_do_anything_unnamed(listener: Listener, settings: Settings) -> bool:
    ruled = settings.rule or settings.access.acl_file or settings.access.default == "deny"
    return not ruled and admits_anonymous(listener, settings)


def _certificates(settings: Settings) -> Iterator[str]:
    for table in settings.authenticator:
        if table.type == "certificate" and all(
            listener.tls is None or listener.tls.client_certificates == "none" for listener in settings.listeners
        ):
            yield (
                'the authenticator of the type "certificate" accepts no client: no listener requests client '
                "certificates (client_certificates in [listener.tls])"
            )


def _services(settings: Settings) -> Iterator[str]:
    for at, table in enumerate(settings.authenticator):
        if isinstance(table, HttpTable) and in_clear(table.url):
            yield (
                f"authenticator[{at}].url: passwords are sent to another machine unencrypted, and anybody in between "
                "can change the answer. Use https://"
            )
        if isinstance(table, JwtTable) and is_url(table.jwks) and in_clear(table.jwks):
            yield (
                f"authenticator[{at}].jwks: the keys come from another machine unencrypted, and anybody in between can "
                "replace them and so sign any token. Use https://"
            )
        if isinstance(table, HttpTable) and table.on_error == "allow":
            yield (
                f'authenticator[{at}].on_error = "allow": anybody who can stop the service from answering can connect '
                "under any name"
            )


def _in_clear(settings: Settings) -> Iterator[str]:
    """Yield a line for each place where credentials other than those of clients cross the network unencrypted."""
    http = settings.http
    for url, endpoint in zip(http.listen, http.endpoints, strict=True):
        if http.guarded and endpoint.scheme == "http" and endpoint.host and not is_loopback(endpoint.host):
            yield (
                f'http.listen "{url}": other machines may reach it without TLS, so passwords and tokens of operators '
                "cross the network unencrypted. Use https://, or listen on 127.0.0.1 behind a proxy with TLS"
            )
    for link in settings.upstream:
        parts = urlsplit(link.url)
        if parts.scheme == "mqtt" and not is_loopback(parts.hostname or "") and (link.password or link.password_file):
            yield (
                f'upstream "{link.name}": its password is sent to another machine unencrypted. Use mqtts:// in its url'
            )


def _any_proxy(settings: Settings) -> Iterator[str]:
    for at, listener in enumerate(settings.listener):
        if not listener.endpoint.path and any(ip_network(each).prefixlen == 0 for each in listener.proxy_from):
            yield (
                f"listener[{at}].proxy_from allows every address: whoever reaches the listener may claim any address, "
                "and so evade bans, limits and rules about addresses. Name the proxies alone"
            )


def _asks_for_certificates(listener: Listener) -> bool:
    return listener.tls is not None and listener.tls.client_certificates == "required"


def _sends_passwords(listener: Listener, settings: Settings) -> bool:
    return any(table.type in ("password-file", "http", "jwt") for table in authenticators_of(listener, settings))


def _others_reach(listener: Listener) -> bool:
    host = listener.endpoint.host
    return bool(host) and not is_loopback(host)
