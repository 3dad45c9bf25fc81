"""An upstream that closes the connection for a message: that one is dropped and named, and everything else gets up."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from tests.e2e import wire
from tests.e2e.links.network import OFTEN, Net, link, told
from tests.e2e.links.scripted_upstream import Caller, Heard, ScriptedUpstream

GIVEN_UP = "$SYS/broker/upstream/up/messages/given up"
REFUSED = "$SYS/broker/clients/$upstream%2Fup/dropped/refused"


class Closes(ScriptedUpstream):
    """Cuts whoever publishes to `up/secret`, with a DISCONNECT before that if `code` is not 0."""

    code = 0

    async def answer(self, caller: Caller, heard: Heard) -> None:
        if heard.kind == wire.PUBLISH and self.cuts(heard):
            if self.code:
                await caller.send(wire.packet(wire.DISCONNECT, 0, bytes([self.code, 0])))
            caller.writer.close()
            raise ConnectionError
        await super().answer(caller, heard)

    def cuts(self, heard: Heard) -> bool:
        """Return whether it closes the connection for this message."""
        return heard.topic == "up/secret"


def came(upstream: ScriptedUpstream, topic: str) -> set[bytes]:
    """Return the payloads published to a topic, over all connections."""
    return {payload for caller in upstream.callers for payload in caller.published(topic)}


@pytest.mark.parametrize(("version", "qos", "code"), [("5.0", 1, 0), ("5.0", 2, 0x99), ("3.1.1", 2, 0)])
async def test_a_message_that_is_answered_by_closing(net: Net, version: str, qos: int, code: int) -> None:
    upstream = Closes()
    upstream.code = code
    upstream.session_present = True
    await net.scripted(upstream)
    with capture_logs() as logs:
        edge = await net.edge(link(upstream, publish=["up/#"], version=version), sys={"interval": OFTEN})
        writer = await net.join(edge, "writer")
        other = await net.join(edge, "other", "down")
        for number in range(10):
            await writer.publish("up/open", b"%d" % number, qos=qos)
        await writer.publish("up/secret", b"no", qos=qos)
        for number in range(10, 30):
            await writer.publish("up/open", b"%d" % number, qos=qos)
        await upstream.until("the others", lambda: len(came(upstream, "up/open")) == 30)
        operator = await net.join(edge, "operator")
        assert await told(operator, GIVEN_UP, lambda value: value == "1")
        assert await told(await net.join(edge, "operator-2"), REFUSED, lambda value: value == "1")
    [line] = [each for each in logs if "ended connections for a message" in each["event"]]
    assert (line["upstream"], line["topic"], line["qos"]) == ("up", "up/secret", qos)
    # The link is there, in both directions, and stays.
    await upstream.until("it is back", lambda: not upstream.callers[-1].ended and upstream.callers[-1].heard)
    caller = upstream.callers[-1]
    await caller.publish("down", b"fine", qos=1)
    assert (await other.message()).payload == b"fine"
    await writer.publish("up/open", b"last", qos=qos)
    await upstream.until("the last one", lambda: b"last" in caller.published("up/open"))
    assert not caller.ended


async def test_an_upstream_that_closes_for_everything_for_a_while(net: Net) -> None:
    """Nothing is lost: there is no message that it closes for, since there is none that it takes."""

    class Flaps(Closes):
        def cuts(self, heard: Heard) -> bool:
            del heard
            return len(self.callers) <= 12

    upstream = Flaps()
    upstream.session_present = True
    await net.scripted(upstream)
    edge = await net.edge(link(upstream, publish=["up/#"]), sys={"interval": OFTEN})
    writer = await net.join(edge, "writer")
    for number in range(30):
        await writer.publish(f"up/{number}", b"x", qos=1 + number % 2)
    await upstream.until("enough of it", lambda: len(upstream.callers) > 12)
    caller = upstream.callers[12]
    await upstream.until("all of them", lambda: len({heard.topic for heard in caller.said(wire.PUBLISH)}) == 30)
    assert await told(await net.join(edge, "operator"), GIVEN_UP, lambda value: value == "0")
