"""Imports mosquitto's file (`mosquitto.db`, versions 5 and 6: 1.6 to 2.1) into an empty store.

Owns the layout of that file, and its conversion. Promises: a file that cannot be read to its end imports nothing; what
cannot be converted is counted by its reason. Source: mosquitto's src/persist.h and persist_read*.c. Lengths are
big-endian; identifiers and times are in the byte order of the processor, which is little-endian wherever mosquitto is
packaged.
"""

from __future__ import annotations

import json
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from canopy_mqtt.core.codec.packets import PUBLISH
from canopy_mqtt.core.codec.properties import ForwardScan
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import SHARE_PREFIX, validate_filter
from canopy_mqtt.core.queues.delivery import QUEUED, RELEASED, SENT
from canopy_mqtt.core.routing import nodes
from canopy_mqtt.core.routing.links import UPLINKS
from canopy_mqtt.core.routing.node_messages import marked
from canopy_mqtt.core.topics.trie import NODES, Trie, create
from canopy_mqtt.files import open_file
from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.tools.importing import FaultyRow, Importer, filling
from canopy_mqtt.store.tools.row_rules import NEVER

MAGIC: Final = b"\x00\xb5\x00mosquitto db"
VERSIONS: Final = (5, 6)

CFG, MESSAGE, CLIENT_MESSAGE, RETAINED, SUBSCRIPTION, CLIENT = range(1, 7)

_HEAD: Final = struct.Struct(">II")
_CLIENT_5: Final = struct.Struct("<8s8s")
_CLIENT_6: Final = struct.Struct("<8s8s8s")
_TIME: Final = struct.Struct("<q")
_CLIENT: Final = struct.Struct(">IHH")
_CLIENT_NAME: Final = struct.Struct(">HH4x")
_STORE_ID: Final = struct.Struct("<Q")
_CLIENT_MESSAGE: Final = struct.Struct(">HHBBBB")
_MESSAGE_HEAD: Final = struct.Struct("<Qq")
_MESSAGE: Final = struct.Struct(">IHHHHHBB")
_SUBSCRIPTION: Final = struct.Struct(">IHHBBxx")

INCOMING: Final = 0

STATES: Final = {2: SENT, 3: SENT, 4: SENT, 5: SENT, 6: RELEASED, 9: RELEASED, 1: QUEUED, 11: QUEUED}
"""mosquitto's state of a message to a client (`mosq_ms_…`) → ours."""
ON_THE_WIRE: Final = (3, 5)
"""Those that mosquitto has written."""

NO_LOCAL: Final = 0x04
RETAIN_AS_PUBLISHED: Final = 0x08


_Terms = tuple[int, int, int]
"""QoS, options and identifier of a subscription."""


class Damaged(Exception):
    """The file is not as mosquitto writes it."""


class _Message:
    def __init__(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = b""
        self.publisher = ""
        self.expires_at: float | None = None
        # How many deliveries it is in.
        self.uses = 0


class _Session:
    def __init__(self, user_name: str | None, expiry_interval: int, disconnected_at: float | None) -> None:
        self.user_name = user_name
        self.expiry_interval = expiry_interval
        self.disconnected_at = disconnected_at
        self.subscriptions: dict[str, _Terms] = {}
        self.deliveries: list[tuple[int, dict[str, Any]]] = []  # message, row
        self.received: list[tuple[int, int]] = []  # packet identifier, message


class Saved:
    """The content of a file. `left`: what of it has no place in a store, by reason."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.messages: dict[int, _Message] = {}
        self.sessions: dict[str, _Session] = {}
        self.retained: dict[str, int] = {}  # topic → message
        self.left: Counter[str] = Counter()
        self.doubtful: list[str] = []
        """Clients whose user names may be those of others."""
        self._before: str | None = None
        self._gone: set[str] = set()
        self._expired: set[int] = set()

    def message(self, part: bytes, version: int) -> None:
        del version
        number, expires_at = _MESSAGE_HEAD.unpack_from(part)
        fixed = _MESSAGE.unpack_from(part, _MESSAGE_HEAD.size)
        length, _, publisher, user, topic, _, qos, retain = fixed
        fields = _Fields(part, _MESSAGE_HEAD.size + _MESSAGE.size)
        source = fields.text(publisher)
        fields.take(user)
        message = _Message(fields.text(topic), fields.take(length), qos, retain != 0)
        message.publisher = source
        message.properties = _properties(fields.rest()).forward
        if expires_at > 0:
            message.expires_at = float(expires_at)
            if expires_at <= self.now:
                self._expired.add(number)
                return
        self.messages[number] = message

    def client(self, part: bytes, version: int) -> None:
        fixed = _CLIENT_6 if version > 5 else _CLIENT_5
        if len(part) < fixed.size:
            raise Damaged("a client is cut short")
        expires_at = _TIME.unpack_from(part)[0]
        interval, _, length = _CLIENT.unpack_from(part, 8)
        fields = _Fields(part, fixed.size)
        client_id = fields.text(length)
        user_name: str | None = None
        if version > 5:
            name = fields.take(_CLIENT_NAME.unpack_from(part, 16)[1])
            user_name = self._user_name(client_id, name) if name else None
        if client_id.startswith((UPLINKS, nodes.NODES, SHARE_PREFIX)):
            # The session of a link, a node or a share group here: nothing that a client of mosquitto may bring about.
            begin = client_id[: client_id.index("/") + 1]
            self._leave(client_id, f"sessions whose client identifiers begin with {begin}")
        elif interval == 0:
            self._leave(client_id, "sessions that end with their connection")
        elif interval != NEVER and 0 < expires_at <= self.now:
            self._leave(client_id, "sessions that have expired")
        else:
            away = float(expires_at - interval) if expires_at > 0 and interval != NEVER else None
            self.sessions[client_id] = _Session(user_name, interval, away)

    def _user_name(self, client_id: str, name: bytes) -> str | None:
        """For a client without one mosquitto 2.0 writes that of the client before, at first with memory behind it."""
        user_name = _text(name.partition(b"\0")[0])
        if b"\0" in name:
            self._before = user_name
            return None
        if user_name == self._before:
            # It may be its own. Nobody without a name is to have the messages of somebody with one.
            self.doubtful.append(client_id)
        else:
            self._before = None
        return user_name

    def _leave(self, client_id: str, why: str) -> None:
        self._gone.add(client_id)
        self.left[why] += 1

    def client_message(self, part: bytes, version: int) -> None:
        del version
        number = _STORE_ID.unpack_from(part)[0]
        packet_id, length, qos, state, retain_dup, direction = _CLIENT_MESSAGE.unpack_from(part, 8)
        fields = _Fields(part, 16)
        session = self._session(fields.text(length), "messages")
        if session is None:
            return
        ours = STATES.get(state)
        if direction != INCOMING and ours is None:
            self.left[f"messages in state {state}, which is none"] += 1
            return
        if number not in self.messages and (direction == INCOMING or ours != RELEASED):
            self.left["messages that have expired" if number in self._expired else "messages without content"] += 1
            return
        if direction == INCOMING:
            session.received.append((packet_id, number))
            return
        identifiers = _properties(fields.rest()).subscription_ids
        dup = retain_dup & 0x0F or state in ON_THE_WIRE or ours == RELEASED
        row = _delivery(qos, retain_dup >> 4 != 0, identifiers)
        row["state"] = ours
        if ours != QUEUED:
            row["packet_id"], row["attempts"] = packet_id, int(dup != 0)
        self.deliver(session, number, row)

    def deliver(self, session: _Session, number: int, row: dict[str, Any]) -> None:
        if row["state"] != RELEASED:
            self.messages[number].uses += 1
        session.deliveries.append((number, row))

    def _session(self, client_id: str, what: str) -> _Session | None:
        session = self.sessions.get(client_id)
        if session is None:
            of = "left out" if client_id in self._gone else "not saved"
            self.left[f"{what} of sessions that are {of}"] += 1
        return session

    def subscription(self, part: bytes, version: int) -> None:
        del version
        identifier, client_length, length, qos, options = _SUBSCRIPTION.unpack_from(part)
        fields = _Fields(part, _SUBSCRIPTION.size)
        session = self._session(fields.text(client_length), "subscriptions")
        if session is not None:
            session.subscriptions[fields.text(length)] = (qos, options, identifier)

    def keep(self, part: bytes, version: int) -> None:
        del version
        number = _STORE_ID.unpack_from(part)[0]
        if number in self.messages:
            self.retained[self.messages[number].topic] = number
        else:
            self.left["retained messages that have expired"] += 1

    def release(self) -> None:
        """QoS 2 publishes that a client has not released yet: mosquitto hands them on then, and Canopy at once."""
        if not any(session.received for session in self.sessions.values()):
            return
        trie, terms_of = self._filters()
        for session in self.sessions.values():
            for _, number in session.received:
                message = self.messages[number]
                heard: dict[str, list[_Terms]] = {}
                for entry in trie.match(message.topic):
                    for client_id, terms in terms_of[entry.topic_filter]:
                        if not (terms[1] & NO_LOCAL and client_id == message.publisher):
                            heard.setdefault(client_id, []).append(terms)
                for client_id, found in heard.items():
                    qos = min(message.qos, max(terms[0] for terms in found))
                    retain = message.retain and any(terms[1] & RETAIN_AS_PUBLISHED for terms in found)
                    identifiers = tuple(terms[2] for terms in found if terms[2])
                    self.deliver(self.sessions[client_id], number, _delivery(qos, retain, identifiers))
                if message.retain:
                    self.retained.pop(message.topic, None)
                    if message.payload:
                        self.retained[message.topic] = number

    def _filters(self) -> tuple[Trie, dict[str, list[tuple[str, _Terms]]]]:
        """Find subscribers by topic: a saved broker may have very many of both."""
        trie = create(NODES)
        found: dict[str, list[tuple[str, _Terms]]] = {}
        for client_id, session in self.sessions.items():
            for topic_filter, terms in session.subscriptions.items():
                if topic_filter.startswith("$share/"):
                    continue
                if topic_filter not in found:
                    try:
                        validate_filter(topic_filter)
                    except ProtocolError:
                        continue
                    trie.insert(topic_filter)
                    found[topic_filter] = []
                found[topic_filter].append((client_id, terms))
        return trie, found


class _Fields:
    """Reads the fields behind the fixed part of a chunk."""

    def __init__(self, part: bytes, at: int) -> None:
        self._part = part
        self._at = at

    def take(self, length: int) -> bytes:
        found = self._part[self._at : self._at + length]
        if len(found) < length:
            raise Damaged("a chunk is shorter than what it says that it holds")
        self._at += length
        return found

    def text(self, length: int) -> str:
        return _text(self.take(length))

    def rest(self) -> bytes:
        return self._part[self._at :]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Damaged("a text in it is no UTF-8") from error


def _properties(data: bytes) -> ForwardScan:
    """The properties of a PUBLISH, with their length before them."""
    if not data:
        return ForwardScan(b"", 0, 0, PUBLISH)
    length = at = 0
    while True:
        if at == len(data) or at == 4:
            raise Damaged("properties have no length")
        length |= (data[at] & 0x7F) << 7 * at
        at += 1
        if data[at - 1] < 0x80:
            break
    if at + length != len(data):
        raise Damaged("properties have another length than they say")
    try:
        return ForwardScan(data, at, len(data), PUBLISH)
    except ProtocolError as error:
        raise Damaged(f"properties cannot be: {error}") from error


def _delivery(qos: int, retain: bool, identifiers: tuple[int, ...]) -> dict[str, Any]:
    return {
        "state": QUEUED,
        "packet_id": 0,
        "attempts": 0,
        "qos": qos,
        "retain": int(retain),
        "identifiers": json.dumps(identifiers) if identifiers else None,
    }


CHUNKS: Final[dict[int, Callable[[Saved, bytes, int], None]]] = {
    MESSAGE: Saved.message,
    CLIENT_MESSAGE: Saved.client_message,
    RETAINED: Saved.keep,
    SUBSCRIPTION: Saved.subscription,
    CLIENT: Saved.client,
}


def read(file: BinaryIO, size: int, now: float) -> Saved:
    """All that mosquitto has saved, at `now` (seconds since the epoch). Raises Damaged."""
    if file.read(len(MAGIC)) != MAGIC:
        raise Damaged("it is not a file of mosquitto")
    head = file.read(8)
    version = int.from_bytes(head[4:], "big")
    if version not in VERSIONS:
        raise Damaged(f"it is of version {version}, and not 5 or 6: start a mosquitto of 2.0 on it, and stop it")
    saved = Saved(now)
    for kind, part in _chunks(file, size):
        take = CHUNKS.get(kind)
        if take is not None:
            try:
                take(saved, part, version)
            except struct.error as error:
                raise Damaged("a chunk is cut short") from error
        elif kind != CFG:
            saved.left[f"chunks of kind {kind}, which is unknown"] += 1
    saved.release()
    return saved


def _chunks(file: BinaryIO, size: int) -> Iterator[tuple[int, bytes]]:
    while head := file.read(_HEAD.size):
        if len(head) < _HEAD.size:
            raise Damaged("it is cut short")
        kind, length = _HEAD.unpack(head)
        if length > size - file.tell():
            raise Damaged("it is cut short")
        yield kind, file.read(length)


def bring(directory: Path, file: Path) -> tuple[dict[str, int], Saved]:
    """Bring what mosquitto has saved into the store of a directory.

    Returns how many rows came into each table, and what the file had.

    Raises:
        StoreError: the file cannot be read to its end, or the store cannot be filled; then nothing has come in.
    """
    try:
        with open_file(file) as source:
            saved = read(source, file.stat().st_size, time.time())
    except OSError as error:
        raise StoreError(f"{file} cannot be read ({error.strerror}): be mosquitto's user, or root") from error
    except Damaged as error:
        raise StoreError(f"{file} cannot be taken over: {error}") from error
    with filling(directory) as importer:
        _fill(importer, saved)
    return importer.counts, saved


def _fill(importer: Importer, saved: Saved) -> None:
    known = [(name, session) for name, session in saved.sessions.items() if _session(importer, saved, name, session)]
    for name, session in known:
        for topic_filter, (qos, options, identifier) in session.subscriptions.items():
            row = {
                "client_id": name,
                "filter": topic_filter,
                "qos": qos,
                "identifier": identifier,
                "no_local": int(options & NO_LOCAL != 0),
                "retain_as_published": int(options & RETAIN_AS_PUBLISHED != 0),
                "retain_handling": 0,
                "streaming": 0,
            }
            _row(importer, saved, "subscription", row)
        for packet_id, _ in session.received:
            _row(importer, saved, "received", {"client_id": name, "packet_id": packet_id})
    shared: dict[int, int] = {}
    for number, message in saved.messages.items():
        if message.uses > 1:
            shared[number] = len(shared) + 1
            _row(importer, saved, "message", {"id": shared[number], "retain": int(message.retain), **_content(message)})
    for name, session in known:
        for number, row in session.deliveries:
            content: dict[str, Any] = {}
            if number in shared and row["state"] != RELEASED:
                content = {"message": shared[number]}
            elif row["state"] != RELEASED:
                message = saved.messages[number]
                content = {**_content(message), "publish_qos": message.qos, "publish_retain": int(message.retain)}
            _row(importer, saved, "delivery", {**content, "client_id": name, **row})
    importer.forget_unused()
    for number in saved.retained.values():
        message = saved.messages[number]
        # Of what a client has written, nothing says when a node retained it.
        _row(importer, saved, "retained", {**_content(message), "properties": marked(message.properties, 0) or None})


def _session(importer: Importer, saved: Saved, name: str, session: _Session) -> bool:
    row = {
        "client_id": name,
        "principal": json.dumps({"user_name": session.user_name}, ensure_ascii=False),
        "expiry_interval": session.expiry_interval,
        "disconnected_at": session.disconnected_at,
    }
    return _row(importer, saved, "session", row)


def _content(message: _Message) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "payload": message.payload,
        "qos": message.qos,
        "properties": message.properties or None,
        "publisher": message.publisher or None,
        "expires_at": message.expires_at,
    }


def _row(importer: Importer, saved: Saved, table: str, row: dict[str, Any]) -> bool:
    """Bring in a row, or count why it cannot be."""
    try:
        importer.row(table, row)
    except FaultyRow as error:
        saved.left[f"{table}: {error}"] += 1
        return False
    return True
