"""Hypothesis strategies for packets, shared by the tests of the core.

Owns: one strategy for every packet type, in both directions and every version, of packets that the specification allows
and that are in the form in which the decoder returns them. Strings and payloads are short: long ones have tests of
their own. Nothing invalid is drawn.
"""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec import properties as pr
from canopy_mqtt.core.codec.packets import Packet, Publish, SubscriptionRequest, Will
from canopy_mqtt.core.codec.properties import Properties
from tests.core.codec import reason_codes

VERSIONS: Final = (p.V31, p.V311, p.V5)

packet_ids = st.integers(1, 65_535)
qos_levels = st.integers(0, 2)
binary = st.binary(max_size=40)
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
topic_names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0+#") | st.just("/"), min_size=1, max_size=20
)
_levels = st.just("+") | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#/"), max_size=8)
topic_filters = st.builds(
    lambda levels, last: "/".join([*levels, *last]), st.lists(_levels, max_size=4), st.sampled_from(([], ["#"]))
).filter(lambda value: value != "" and not value.startswith("$share/"))
user_properties = st.lists(st.tuples(text, text), max_size=3)

_TYPICAL: Final = (0, 1, 2, 127, 128, 16_383, 16_384, 65_535, 2_097_151, 2_097_152, 268_435_455, 4_294_967_295)


def _number(row: pr.PropertyInfo) -> st.SearchStrategy[int]:
    edges = [value for value in _TYPICAL if row.minimum <= value <= row.maximum]
    return st.integers(row.minimum, row.maximum) | st.sampled_from(edges)


@st.composite
def properties(draw: st.DrawFn, place: int, without: frozenset[int] = frozenset()) -> Properties:
    """A bag of properties that may stand in a packet of the kind `place`, except those in `without`."""
    bag = Properties()
    rows = [
        row for row in pr.TABLE.values()
        if row.allowed_in(place) and row.identifier != pr.USER_PROPERTY and row.identifier not in without
    ]  # fmt: skip
    for row in rows:
        if not draw(st.booleans()):
            continue
        if row.wire_type == pr.STRING:
            bag.strings[row.identifier] = draw(text)
        elif row.wire_type == pr.BINARY:
            bag.binaries[row.identifier] = draw(binary)
        else:
            bag.integers[row.identifier] = draw(_number(row))
    bag.user.extend(draw(user_properties))
    return bag


@st.composite
def forwarded(draw: st.DrawFn) -> bytes:
    """Encoded properties as a message carries them, in any order."""
    parts = []
    if draw(st.booleans()):
        parts.append(pr.encode_forward(payload_format=draw(st.integers(0, 1))))
    if draw(st.booleans()):
        parts.append(pr.encode_forward(content_type=draw(text)))
    if draw(st.booleans()):
        parts.append(pr.encode_forward(response_topic=draw(topic_names)))
    if draw(st.booleans()):
        parts.append(pr.encode_forward(correlation_data=draw(binary)))
    parts.extend(pr.encode_forward(user=[pair]) for pair in draw(user_properties))
    return b"".join(draw(st.permutations(parts)))


def _bag(version: int, place: int, without: frozenset[int] = frozenset()) -> st.SearchStrategy[Properties]:
    return properties(place, without) if version == p.V5 else st.builds(Properties)


expiries = st.just(-1) | st.integers(0, 4_294_967_295)


@st.composite
def publishes(draw: st.DrawFn, version: int, from_server: bool = False) -> Publish:
    """A PUBLISH as it may stand on the wire."""
    qos = draw(qos_levels)
    alias, expiry, subscription_ids, forward = 0, -1, [], b""
    if version == p.V5:
        alias = draw(st.just(0) | st.integers(1, 65_535))
        expiry = draw(expiries)
        forward = draw(forwarded())
        if from_server:
            subscription_ids = draw(st.lists(st.integers(1, 268_435_455), max_size=3))
    topic = "" if alias and draw(st.booleans()) else draw(topic_names)
    return Publish(
        topic.encode(), draw(binary), qos, draw(st.booleans()), qos > 0 and draw(st.booleans()),
        draw(packet_ids) if qos else 0, forward, alias, expiry, tuple(subscription_ids),
    )  # fmt: skip


@st.composite
def wills(draw: st.DrawFn, version: int) -> Will:
    """A Will Message."""
    will = Will(draw(topic_names), draw(binary), draw(qos_levels), draw(st.booleans()))
    if version == p.V5:
        will.delay = draw(st.just(0) | st.integers(0, 4_294_967_295))
        will.message_expiry = draw(expiries)
        will.properties = draw(forwarded())
    return will


@st.composite
def connects(draw: st.DrawFn, version: int) -> p.Connect:
    """A CONNECT of that version."""
    clean = draw(st.booleans())
    needs_id = version == p.V31 or (version == p.V311 and not clean)
    user_name = draw(st.none() | text)
    bag = draw(_bag(version, p.CONNECT))
    if pr.AUTHENTICATION_METHOD not in bag.strings:
        bag.binaries.pop(pr.AUTHENTICATION_DATA, None)
    return p.Connect(
        client_id=draw(text.filter(bool) if needs_id else text),
        version=version,
        clean_start=clean,
        keep_alive=draw(st.integers(0, 65_535)),
        will=draw(st.none() | wills(version)),
        user_name=user_name,
        password=draw(st.none() | binary) if version == p.V5 or user_name is not None else None,
        properties=bag,
        bridge=version != p.V5 and draw(st.booleans()),
    )


@st.composite
def acks(draw: st.DrawFn, version: int) -> p.Ack:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""
    kind = draw(st.sampled_from((p.PUBACK, p.PUBREC, p.PUBREL, p.PUBCOMP)))
    codes = reason_codes.PUBACK if kind <= p.PUBREC else reason_codes.PUBREL
    code = draw(st.sampled_from(codes)) if version == p.V5 else 0
    return p.Ack(kind, draw(packet_ids), code, draw(_bag(version, kind)))


@st.composite
def _requests(draw: st.DrawFn, version: int) -> SubscriptionRequest:
    shared = draw(st.booleans())
    request = SubscriptionRequest(("$share/g/" if shared else "") + draw(topic_filters), draw(qos_levels))
    if version == p.V5:
        request.no_local = not shared and draw(st.booleans())
        request.retain_as_published = draw(st.booleans())
        request.retain_handling = draw(st.integers(0, 2))
    return request


@st.composite
def _auths(draw: st.DrawFn, from_server: bool) -> p.Auth:
    bag = draw(properties(p.AUTH))
    bag.strings[pr.AUTHENTICATION_METHOD] = draw(text)
    return p.Auth(draw(st.sampled_from((0x00, 0x18) if from_server else (0x18, 0x19))), bag)


def _disconnects(version: int, from_server: bool) -> st.SearchStrategy[p.Disconnect]:
    if version != p.V5:
        return st.builds(p.Disconnect)
    without = pr.SESSION_EXPIRY_INTERVAL if from_server else pr.SERVER_REFERENCE
    codes = reason_codes.DISCONNECT_SERVER if from_server else reason_codes.DISCONNECT_CLIENT
    return st.builds(p.Disconnect, st.sampled_from(codes), properties(p.DISCONNECT, frozenset((without,))))


def client_packets(version: int) -> st.SearchStrategy[Packet]:
    """What a client may send after its CONNECT."""
    kinds: list[st.SearchStrategy[Packet]] = [
        publishes(version),
        acks(version),
        st.builds(
            p.Subscribe, packet_ids, st.lists(_requests(version), min_size=1, max_size=4), _bag(version, p.SUBSCRIBE)
        ),
        st.builds(
            p.Unsubscribe, packet_ids, st.lists(topic_filters, min_size=1, max_size=4), _bag(version, p.UNSUBSCRIBE)
        ),
        st.builds(p.Pingreq),
        _disconnects(version, from_server=False),
    ]
    if version == p.V5:
        kinds.append(_auths(from_server=False))
    return st.one_of(kinds)


@st.composite
def _connacks(draw: st.DrawFn, version: int) -> p.Connack:
    code = draw(st.sampled_from(reason_codes.CONNACK)) if version == p.V5 else draw(st.integers(0, 5))
    return p.Connack(code == 0 and draw(st.booleans()), code, draw(_bag(version, p.CONNACK)))


@st.composite
def _unsubacks(draw: st.DrawFn, version: int) -> p.Unsuback:
    if version != p.V5:
        return p.Unsuback(draw(packet_ids))
    codes = draw(st.lists(st.sampled_from(reason_codes.UNSUBACK), min_size=1, max_size=4))
    return p.Unsuback(draw(packet_ids), codes, draw(properties(p.UNSUBACK)))


def server_packets(version: int) -> st.SearchStrategy[Packet]:
    """What a server may send."""
    suback_codes = st.sampled_from(reason_codes.SUBACK if version == p.V5 else (0x00, 0x01, 0x02, 0x80))
    kinds: list[st.SearchStrategy[Packet]] = [
        _connacks(version),
        publishes(version, from_server=True),
        acks(version),
        st.builds(p.Suback, packet_ids, st.lists(suback_codes, min_size=1, max_size=4), _bag(version, p.SUBACK)),
        _unsubacks(version),
        st.builds(p.Pingresp),
    ]
    if version == p.V5:
        kinds.append(_disconnects(version, from_server=True))
        kinds.append(_auths(from_server=True))
    return st.one_of(kinds)
