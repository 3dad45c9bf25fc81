"""The picture of the figures names what was measured."""

from __future__ import annotations

from benchmarks.network.plot import draw


def test_each_broker_has_its_version() -> None:
    """One version of a broker may need half of what another does."""
    row = {"title": "pairs", "brokers": {name: {"medians": {"cpu_us": 2.0}} for name in ("mosquitto", "relay")}}
    says = {"mosquitto": "mosquitto version 2.0.11", "relay": "copies bytes, parses nothing (Python)"}

    picture = draw({"brokers": says, "rows": [row]})

    assert ">mosquitto 2.0.11</text>" in picture
    assert ">relay</text>" in picture
