"""How mosquitto's bridge is started: the peer of Canopy's links."""

from __future__ import annotations

from pathlib import Path

from loadtest.brokers.process import HOST
from loadtest.brokers.registry import PEERS, Order


def mosquitto_bridge(port: int, remote: int, folder: Path, topic_filter: str, qos: int) -> list[str]:
    """A mosquitto that hands what is published under a topic filter to the broker at a port."""
    config = folder / "edge.conf"
    config.write_text(
        f"listener {port} {HOST}\nallow_anonymous true\npersistence false\nlog_dest none\nsys_interval 0\n"
        f"max_queued_messages 1000000\nmax_inflight_messages 1000\nset_tcp_nodelay true\n"
        f"connection up\naddress {HOST}:{remote}\ntopic {topic_filter} out {qos}\nbridge_protocol_version mqttv50\n"
        "notifications false\n"
    )
    return [PEERS["mosquitto"].begin(Order(port, folder))[0], "-c", str(config)]
