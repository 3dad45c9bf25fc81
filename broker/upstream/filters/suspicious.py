"""Warns at the start of link settings that are allowed but probably mistakes, one line each.

Owns the list of such settings. A line names the setting and the consequence, as in `upstream[0] "cloud": aggregate "#":
all that is published upstream comes down …`.

Promises: nothing is refused here, and a link with sensible settings is not mentioned. `broker.settings` refuses
settings that cannot be used.

It reads settings only, not what is connected or subscribed, and compares filters in local terms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

from broker.core.codec.topic_names import covers, has_wildcard, is_system, overlaps
from broker.settings import Settings, Upstream

EVERYTHING: Final = ("#", "+/#")

ECHO: Final = "MQTT 3.1.1 has no No Local, so these messages come down again unless the upstream knows the bridge bit"

TWICE: Final = (
    "clean_start: the upstream forgets at each start what it has received, so with store.path a QoS 2 message that was "
    "in flight may arrive twice. Use false and a fixed client_id"
)

_DEFAULTS: Final = {key: field.default for key, field in Upstream.model_fields.items()}


def warnings(settings: Settings) -> list[str]:
    """One line for each suspicious thing about the links, in their order; first what is about one link by itself."""
    lines: list[str] = []
    links = settings.upstream
    for at, link in enumerate(links):
        about = f'upstream[{at}] "{link.name}": '
        told = [*_aggregates(link, settings.presence.topic), *_directions(link), *_places(link)]
        told += [*_without_effect(link), *_session(link, settings.federation.broker_id)]
        if settings.store.kept and link.publish and link.publish_qos == 2 and link.clean_start:
            told.append(TWICE)
        lines += [about + text for text in told]
    for (first, one), (second, other) in combinations(enumerate(links), 2):
        about = f'upstream[{second}] "{other.name}": '
        lines += [about + text for text in _beside(other, one, f'upstream[{first}] "{one.name}"')]
    return lines


# --- one link -----------------------------------------------------------------------------------------------------


def _aggregates(link: Upstream, presence_topic: str) -> Iterator[str]:
    """What is strange about `aggregate` by itself, and beside what is never folded."""
    aggregates = _listed(link.aggregate)
    for at, aggregate in enumerate(aggregates):
        about = f'aggregate "{aggregate}": '
        if aggregate in aggregates[:at]:
            yield about + "is listed twice"
            continue
        wider = next((other for other in aggregates if other != aggregate and _includes(other, aggregate)), None)
        if aggregate in EVERYTHING:
            where = (
                "within roots" if link.roots else f"below {link.remote_prefix}" if link.remote_prefix else "upstream"
            )
            yield (about + f"all that is published {where} comes down as soon as a client here subscribes to anything")
        if wider is not None:
            yield about + f'is within aggregate "{wider}", and so has no effect'
        elif is_system(aggregate.encode()):
            yield about + "has no effect, because links never subscribe to $SYS"
        elif aggregate.startswith("$"):
            yield about + "topics that begin with $ belong to the upstream broker, which may refuse this"
        elif not has_wildcard(aggregate):
            yield about + "has no effect, because it includes no other filter"
        if any(covers(kept, aggregate) for kept in link.unfolded):
            yield about + "has no effect, because it is within unfolded"
    presence = f"{presence_topic}/#"
    if presence_topic and not any(covers(kept, presence) for kept in link.unfolded):
        folding = [aggregate for aggregate in aggregates if overlaps(aggregate, presence)]
        if folding:
            yield (
                f'aggregate "{folding[0]}": folds what is below presence.topic, "{presence_topic}"; '
                f'with "{presence}" in unfolded it would not'
            )


def _directions(link: Upstream) -> Iterator[str]:
    """What goes up and comes down again, and what does neither."""
    asked = [("subscribe", each) for each in _listed(link.subscribe)]
    if link.subscribe == "demand":
        asked = [("aggregate", each) for each in _listed(link.aggregate)]
    if link.version == "3.1.1":
        for sent in link.publish:
            for key, each in asked:
                if overlaps(sent, each):
                    yield f'publish "{sent}": overlaps {key} "{each}"; {ECHO}'
                    break
    for each in _listed(link.subscribe):
        if is_system(each.encode()):
            yield f'subscribe "{each}": has no effect, because links never subscribe to $SYS'
    for sent in link.publish:
        if is_system(sent.encode()) and not link.remote_prefix:
            yield f'publish "{sent}": no broker takes anything below its own $SYS; remote_prefix gives it other names'
    if not link.subscribe and not link.publish:
        yield "subscribe and publish are empty: nothing comes down and nothing goes up"


def _places(link: Upstream) -> Iterator[str]:
    """Filters that lie outside of what can cross the link."""
    inside = f"{link.local_prefix}#"
    for key in ("aggregate", "subscribe", "roots", "unfolded", "publish"):
        value = getattr(link, key)
        if key == "unfolded" and value == _DEFAULTS[key]:
            continue
        for each in _listed(value):
            about = f'{key} "{each}": '
            if link.local_prefix and not overlaps(each, inside):
                yield about + f'has no effect, because it is outside local_prefix, "{link.local_prefix}"'
            elif key in ("aggregate", "subscribe", "unfolded") and not _in_one_of(each, link.roots):
                yield about + "has no effect, because it is outside roots"


def _without_effect(link: Upstream) -> Iterator[str]:
    """Keys that are set, and that nothing asks for."""
    if link.subscribe != "demand" and link.aggregate:
        yield "aggregate: has no effect with a list in subscribe, whose filters are used unchanged"
    if link.aggregate != "auto":
        for key in ("max_filters", "hold"):
            if getattr(link, key) != _DEFAULTS[key]:
                yield f'{key}: has no effect without aggregate = "auto"'
    if link.unfolded == _DEFAULTS["unfolded"]:
        return
    if not link.aggregate:
        if link.unfolded:
            yield "unfolded: has no effect without aggregate"
        return
    aggregates = _listed(link.aggregate)
    for each in link.unfolded:
        if aggregates and not any(overlaps(each, aggregate) for aggregate in aggregates):
            yield f'unfolded "{each}": has no effect, because it is outside every aggregate'


def _session(link: Upstream, broker_id: str) -> Iterator[str]:
    """Who the link is upstream."""
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
    """What is strange about two links to one broker."""
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
    """The filters of a key that may be a word instead."""
    return () if isinstance(value, str) else value


def _includes(wide: str, narrow: str) -> bool:
    """Whether an aggregate makes another useless. Of two that match the same, the shorter one counts as wider."""
    return covers(wide, narrow) and (not covers(narrow, wide) or len(wide) < len(narrow))


def _in_one_of(topic_filter: str, roots: Sequence[str]) -> bool:
    return not roots or any(overlaps(topic_filter, root) for root in roots)
