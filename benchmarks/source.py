"""How many messages a second the Spark source "mqtt" takes from a broker into its spool, without a loss.

Owns: one broker, one publisher that sends at a steady rate (frames made beforehand), and the source's stream reader,
driven as Spark drives it, in this process. The rate holds when every message is a row and the broker told of no loss.

    python -m benchmarks.source [--qos 1] [--rate 40000] [--seconds 10] [--receivers 2]
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from broker.core.codec import encoder, packets
from broker.core.codec.decoder import Decoder
from broker.core.codec.packets import Publish
from broker.core.codec.properties import RECEIVE_MAXIMUM
from pipeline.mqtt.rows import spark_schema
from pipeline.mqtt.source import MqttStreamReader

BURST: Final = 0.005
"""Seconds between two bursts of the publisher."""
SIZE: Final = 64
"""Bytes of a payload."""
WINDOW: Final = 20_000
"""QoS 1: messages without an acknowledgement."""
SILENCE: Final = 5.0
"""Seconds without a new row after which the rest counts as lost."""


def publish(port: int, qos: int, rate: int, seconds: float, told: Connection) -> None:
    """Send at `rate`; in a process of its own. Tells how many it has sent, and in how many seconds."""
    payload = b"x" * SIZE
    decoder = Decoder(1 << 20, False, packets.V5)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(encoder.encode(packets.Connect("publisher", packets.V5), packets.V5))
        decoder.feed(connection.recv(1024))
        decoder.next_frame()
        connack = decoder.packet()
        assert isinstance(connack, packets.Connack)
        window = min(connack.properties.integers.get(RECEIVE_MAXIMUM, 65_535), WINDOW)
        connection.setblocking(False)
        sent = acknowledged = 0
        out = bytearray()
        begun = time.perf_counter()
        while sent < rate * seconds or out or (qos and acknowledged < sent):
            now = time.perf_counter() - begun
            due = int(min(now, seconds) * rate) - sent
            if qos:
                due = min(due, window - (sent - acknowledged))
            for number in range(sent, sent + max(due, 0) if not out else sent):
                topic = b"bench/%d" % (number % 1000)
                out += encoder.publish(
                    Publish(topic, payload, qos, packet_id=number % 65_535 + 1 if qos else 0), packets.V5
                )
                sent += 1
            try:
                while out:
                    del out[: connection.send(out)]
            except BlockingIOError:
                pass
            try:
                answers = connection.recv(1 << 18)
                if not answers:
                    raise ConnectionError("the broker closed the publisher's connection")
                decoder.feed(answers)
                while decoder.next_frame():
                    acknowledged += decoder.header >> 4 == packets.PUBACK
            except BlockingIOError:
                time.sleep(BURST / 5)
        told.send((sent, time.perf_counter() - begun))


def measure(port: int, qos: int, rate: int, seconds: float, folder: Path, receivers: int = 1) -> tuple[int, int, float]:
    """Messages sent, rows read, the publisher's seconds."""
    said = {
        "url": f"mqtt://127.0.0.1:{port}",
        "filters": "bench/#",
        "client_id": "bench",
        "spool": str(folder / "spool"),
        "qos": str(qos),
    }
    if receivers > 1:
        said["receivers"] = str(receivers)
    reader = MqttStreamReader(said, spark_schema())
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    time.sleep(1.5)
    theirs, ours = multiprocessing.Pipe()
    publisher = multiprocessing.get_context("spawn").Process(target=publish, args=(port, qos, rate, seconds, ours))
    publisher.start()
    rows, last = 0, time.monotonic()
    sent: int | None = None
    took = 0.0
    try:
        while sent is None or (rows < sent and time.monotonic() - last < SILENCE):
            if not publisher.is_alive() and sent is None and not theirs.poll():
                raise RuntimeError("the publisher failed")
            if sent is None and theirs.poll():
                sent, took = theirs.recv()
            time.sleep(0.1)
            end = reader.latestOffset(start, limit)
            if end != start:
                for part in reader.partitions(start, end):
                    rows += sum(each.num_rows for each in reader.read(part))
                reader.commit(end)
                last = time.monotonic()
                start = end
    finally:
        publisher.join()
        print(f"progress: {reader.reportLatestOffset()}")
        reader.stop()
    return sent or 0, rows, took


def main() -> None:
    """Start a broker, and print one line for each rate."""
    from tests.support.daemon import Daemon

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--qos", type=int, default=1)
    parser.add_argument("--rate", type=int, default=40_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--receivers", type=int, default=1)
    asked = parser.parse_args()
    with Daemon("--log-level", "error") as daemon, tempfile.TemporaryDirectory() as folder:
        sent, rows, took = measure(daemon.port, asked.qos, asked.rate, asked.seconds, Path(folder), asked.receivers)
    print(f"QoS {asked.qos}: {rows:,} rows of {sent:,} messages, sent at {sent / took:,.0f}/s in {took:.1f} s")


if __name__ == "__main__":
    main()
