"""`canopy acl`: explains the access rules of a settings file, without a broker.

Owns the output of a verdict: the decision, the rule, and its file and line.
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import parse_shared, validate_filter, validate_topic
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.security.rules.rule import PUBLISH, RECEIVE
from canopy_mqtt.security.rules.rule_book import RuleBook, Verdict
from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.loader import load_settings

MISUSED: Final = 2

DENIED: Final = 3
"""The exit code for a denied action."""

app = typer.Typer(name="acl", help="Explain access rules.", no_args_is_help=True, rich_markup_mode=None)


class Action(StrEnum):
    publish = "publish"
    subscribe = "subscribe"
    receive = "receive"


@app.callback()
def acl() -> None:
    """Explain access rules."""


@app.command()
def explain(
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="A topic name; to subscribe, a topic filter.")],
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings in TOML.")] = None,
    user: Annotated[str | None, typer.Option(metavar="NAME", help="The user name; default: anonymous.")] = None,
    client_id: Annotated[str, typer.Option(metavar="ID", help="The client identifier.")] = "",
    group: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A group of the client. Repeatable.")] = None,
    listener: Annotated[str, typer.Option(metavar="NAME", help="The listener that it uses.")] = "",
    address: Annotated[str, typer.Option(metavar="IP", help="Its IP address.")] = "",
    action: Annotated[Action, typer.Option(help="The action.")] = Action.publish,
    qos: Annotated[int, typer.Option(min=0, max=2, help="The QoS.")] = 0,
    retain: Annotated[bool, typer.Option("--retain", help="The message has the RETAIN flag.")] = False,
) -> None:
    """Say whether a client may do something, and which rule decides, in which file and line.

    The exit code is 0 when it may and 3 when it may not. Rules that a token brings are not known here.
    """
    try:
        settings = load_settings(config)
        _check_origin(settings, listener, address)
        book = RuleBook(settings)
        principal = Principal(user, tuple(group or ()), client_id=client_id, listener=listener, host=address)
        verdict = _verdict(book, principal, action, topic, qos, retain)
    except (SettingsError, SecurityError, ProtocolError) as error:
        for line in str(error).splitlines():
            typer.echo(f"canopy: {line}", err=True)
        raise typer.Exit(MISUSED) from None
    granted = f", QoS {min(qos, verdict.max_qos)}" if verdict.allowed and action is Action.subscribe else ""
    typer.echo(f"{'allowed' if verdict.allowed else 'denied'}{granted}")
    typer.echo(f"  {verdict.place}")
    if not verdict.allowed:
        raise typer.Exit(DENIED)


def _check_origin(settings: Settings, listener: str, address: str) -> None:
    """Check that a client can come from there: with a typing error the verdict would be wrong."""
    names = [each.label for each in settings.listeners]
    if listener and listener not in names:
        raise SettingsError([f"--listener {listener}: no listener is called so; there are: {', '.join(names)}"])
    if address:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise SettingsError([f"--address {address}: not an IP address"]) from None


def _verdict(book: RuleBook, principal: Principal, action: Action, topic: str, qos: int, retain: bool) -> Verdict:
    if action is Action.subscribe:
        inner = parse_shared(topic)[1]
        validate_filter(inner)
        return book.about_filter(principal, inner)
    validate_topic(topic)
    return book.about(principal, PUBLISH if action is Action.publish else RECEIVE, topic, qos, retain)
