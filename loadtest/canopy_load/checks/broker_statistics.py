"""The broker's own count of its losses: a client beside the simulated ones subscribes to its `$SYS` topics.

Owns: that client, and ``reconcile``, which holds the broker's figures against what was seen missing.

Promises: a broker that publishes nothing there costs a moment and is not an error. Values are compared as differences
between the beginning and the end of the run.

`$SYS` counts all clients of the broker. What it reports beyond what was seen missing is no fault of this run, unless
the broker was started for it. Where the two do not agree, it says by how much.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from canopy_load.engine.job import Target
from canopy_load.engine.transports import TargetError, address
from canopy_load.report.result import Deliveries, Reconciled
from canopy_mqtt.client.aio import AsyncClient
from canopy_mqtt.client.failures import FAILURE, ClientError
from canopy_mqtt.client.machine import ClientMachine, connect_packet
from canopy_mqtt.core.codec.packets import V311, Publish

ROOT: Final = "$SYS/broker/"
VERSION: Final = "version"
UPTIME: Final = "uptime"
# Canopy's total, and mosquitto's.
TOTALS: Final = ("messages/dropped", "publish/messages/dropped")
FILTERS: Final = (VERSION, UPTIME, "messages/dropped/#", "publish/messages/dropped")
PATIENCE: Final = 3.0
"""Seconds to connect and subscribe."""
MAX_PACKET: Final = 1 << 20
"""Bytes of a packet that is read."""
FIRST: Final = 0.3
"""Seconds for the retained values to come."""
MAX_WAIT: Final = 12.0
"""Seconds to wait for values from after the drain: the usual interval is 10."""
SHORT_WAIT: Final = 1.5
"""Seconds to wait for values if nothing is missing, so that they have nothing to explain: brokers that are started to
be compared publish each second. `--strict` waits for them all the same."""


class Listener:
    """A client that subscribes to the broker's own topics."""

    def __init__(self, client_id: str, user_name: str | None = None, password: str | None = None) -> None:
        self.values: dict[str, str] = {}
        """By topic, below `$SYS/broker/`."""
        self.updates = 0
        """The number of changes of the uptime: the broker has published everything anew so many times."""
        self._changed = asyncio.Event()
        secret = None if user_name is None else password
        connect = connect_packet(
            client_id, version=V311, keep_alive=0, user_name=user_name, password=secret, max_packet_size=MAX_PACKET
        )
        self._machine = ClientMachine(connect)
        self._client: AsyncClient | None = None

    async def open(self, target: Target) -> bool:
        """Connect and subscribe; return True if that succeeded."""
        try:
            self._client = AsyncClient(address(target), self._machine, timeout=PATIENCE, on_message=self.heard)
            await self._client.connect()
            answer = await self._client.subscribe(*(ROOT + each for each in FILTERS))
        except (ClientError, TargetError):
            return False
        if all(code >= FAILURE for code in answer.reason_codes):
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST):
                while UPTIME not in self.values:
                    await self._next()
        return VERSION in self.values

    async def fresh(self, complete: bool = False, longest: float = MAX_WAIT) -> bool:
        """Wait at most `longest` seconds until everything was published anew; return True if it was.

        Values are published one after the other, so that one time may be half of it from before: two are waited for.
        Where the deliveries are `complete`, one time does.
        """
        if UPTIME not in self.values or not self._machine.connected:
            return False
        before = self.updates
        wanted = before + (1 if complete else 2)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest):
                while self.updates < wanted and self._machine.connected:
                    await self._next()
        return self.updates > before and self._machine.connected

    def dropped(self) -> tuple[int, dict[str, int]] | None:
        """Return the messages dropped since the broker's start, in all and by cause; None if it does not say, or is
        gone."""
        if not self._machine.connected:
            return None
        for total in TOTALS:
            value = self.values.get(total, "")
            if value.isdecimal():
                prefix = total + "/"
                causes = {
                    name.removeprefix(prefix): int(text)
                    for name, text in self.values.items()
                    if name.startswith(prefix) and text.isdecimal()
                }
                return int(value), causes
        return None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.disconnect()

    def heard(self, packet: Publish) -> None:
        name = packet.topic.decode(errors="replace").removeprefix(ROOT)
        self.values[name] = packet.payload.decode(errors="replace")
        if name == UPTIME and not packet.retain:
            self.updates += 1
        self._changed.set()

    async def _next(self) -> None:
        """Wait for a value, or the end of the connection."""
        assert self._client is not None
        self._changed.clear()
        waiting = [asyncio.ensure_future(each) for each in (self._changed.wait(), self._client.lost())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()


def reconcile(
    groups: list[Deliveries],
    before: tuple[int, dict[str, int]] | None,
    after: tuple[int, dict[str, int]] | None,
    own_broker: bool = False,
) -> Reconciled:
    """Compare the drops that the broker reports with the messages that are missing, in all groups together.

    `own_broker`: the broker was started for this run and has no other clients."""
    seen = sum(group.lost for group in groups)
    told = sum(group.told_lost for group in groups)
    open_ = sum(group.unjudged + group.unconfirmed for group in groups)
    if after is None:
        why = "The broker publishes no count of dropped messages: what was seen missing stands alone."
        if before is not None:
            why = "The broker published no new count of dropped messages after the run: what was seen stands alone."
            if not seen + told + open_:
                why = "Nothing was missing, so the run did not wait for the broker's next count of dropped messages."
        return _alone(seen, told, why)
    total, causes = before or (0, {})
    if after[0] < total:
        why = "The broker's count of dropped messages began anew during the run: what was seen missing stands alone."
        return _alone(seen, told, why)
    reported = after[0] - total
    by_cause = {cause: count - causes.get(cause, 0) for cause, count in after[1].items()}
    by_cause = {cause: count for cause, count in by_cause.items() if count}
    agrees: bool | None = seen <= reported <= seen + open_
    if reported > seen + open_ and not own_broker:
        agrees = None
        why = (
            f"The broker reported {reported:,} as dropped; {seen:,} were seen missing here. $SYS counts all clients of "
            "the broker: the others may be those of other clients."
        )
    elif agrees:
        why = f"The broker's ledger and the subscribers agree: {seen:,} missing, {reported:,} reported as dropped."
        if open_ and reported != seen:
            why += f" {reported - seen:,} of them are among the {open_:,} that could not be judged."
        if reported and not own_broker:
            why += " ($SYS counts all clients of the broker.)"
    else:
        difference = reported - seen if reported > seen else seen - reported
        side = "reported and not seen missing" if reported > seen else "seen missing and not reported"
        why = f"They do not agree: {seen:,} seen missing, {reported:,} reported as dropped; {difference:,} {side}."
    if told:
        why += f" Subscribers were told of {told:,} in band."
    return Reconciled(seen, reported, by_cause, told, agrees, why)


def _alone(seen: int, told: int, why: str) -> Reconciled:
    if told:
        why += f" It told its subscribers of {told:,} losses."
    return Reconciled(seen, None, {}, told, None, why)
