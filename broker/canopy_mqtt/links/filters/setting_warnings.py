"""Warns at the start of link settings that are allowed and do harm that is not seen in them, one line each.

Owns the list of such settings. A line names the setting and the consequence, as in `upstream[0] "cloud": aggregate "#":
all that is published upstream comes down …`. Nothing is refused here; `canopy_mqtt.settings` refuses what cannot be
used.

It reads settings only, not what is connected or subscribed, and compares filters in local terms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

from canopy_mqtt.core.codec.topic_names import overlaps
from canopy_mqtt.settings import Settings, Upstream

EVERYTHING: Final = ("#", "+/#")

ECHO: Final = "MQTT 3.1.1 has no No Local, so these messages come down again unless the upstream knows the bridge bit"

TWICE: Final = (
    "clean_start: the upstream forgets at each start what it has received, so with store.path a QoS 2 message that was "
    "in flight may arrive twice. Use false and a fixed client_id"
)


def warnings(settings: Settings) -> list[str]:
    """Return one line for each suspicious setting of the links, in their order; first those about one link by
    itself."""
    lines: list[str] = []
    links = settings.upstream
    for at, link in enumerate(links):
        about = f'upstream[{at}] "{link.name}": '
        told = [*_aggregates(link), *_directions(link), *_session(link, settings.federation.broker_id)]
        if settings.store.kept and link.publish and link.publish_qos == 2 and link.clean_start:
            told.append(TWICE)
        lines += [about + text for text in told]
    for (first, one), (second, other) in combinations(enumerate(links), 2):
        about = f'upstream[{second}] "{other.name}": '
        lines += [about + text for text in _beside(other, one, f'upstream[{first}] "{one.name}"')]
    return lines


# --- one link -----------------------------------------------------------------------------------------------------


def _aggregates(link: Upstream) -> Iterator[str]:
    where = "within roots" if link.roots else f"below {link.remote_prefix}" if link.remote_prefix else "upstream"
    for aggregate in _listed(link.aggregate):
        if aggregate in EVERYTHING:
            yield (
                f'aggregate "{aggregate}": all that is published {where} comes down as soon as a client here '
                "subscribes to anything"
            )


def _directions(link: Upstream) -> Iterator[str]:
    """Yield the filters whose messages go up and come down again, and say so if nothing crosses at all."""
    asked = [("subscribe", each) for each in _listed(link.subscribe)]
    if link.subscribe == "demand":
        asked = [("aggregate", each) for each in _listed(link.aggregate)]
    if link.version == "3.1.1":
        for sent in link.publish:
            for key, each in asked:
                if overlaps(sent, each):
                    yield f'publish "{sent}": overlaps {key} "{each}"; {ECHO}'
                    break
    if not link.subscribe and not link.publish:
        yield "subscribe and publish are empty: nothing comes down and nothing goes up"


def _session(link: Upstream, broker_id: str) -> Iterator[str]:
    if not link.username and (link.password or link.password_file) and link.version == "auto":
        # [MQTT3-3.1.2-22]
        yield "password: MQTT 3.1.1 cannot send it without a username, so the upstream must use MQTT 5.0"
    if not link.client_id and not broker_id and link.session_expiry > 0:
        yield (
            "client_id: changes at each start without federation.broker_id, so the session of a killed broker is never "
            f"resumed, and its queue fills upstream for session_expiry, {link.session_expiry} s"
        )


# --- two links ----------------------------------------------------------------------------------------------------


def _beside(link: Upstream, earlier: Upstream, name: str) -> Iterator[str]:
    """Yield the conflicts between two links to one broker."""
    if link.remote != earlier.remote:
        return
    if link.client_id and link.client_id == earlier.client_id:
        yield f'client_id "{link.client_id}": {name} has it too, with the same url; each ends the other\'s connection'
    if (link.local_prefix, link.remote_prefix) != (earlier.local_prefix, earlier.remote_prefix):
        return
    for sent in link.publish:
        both = next((other for other in earlier.publish if overlaps(sent, other)), None)
        if both is not None:
            yield (
                f'publish "{sent}": overlaps publish "{both}" of {name}, which has the same url; messages that both '
                "match are sent twice"
            )


# --- filters ------------------------------------------------------------------------------------------------------


def _listed(value: str | Sequence[str]) -> Sequence[str]:
    """Return the filters of a key that may be a word instead."""
    return () if isinstance(value, str) else value
