"""`canopy_mqtt.core.codec.primitives`: the data representations of section 1.5 at their edges."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.codec import primitives
from canopy_mqtt.core.codec.primitives import Reader
from canopy_mqtt.core.codec.reason_codes import MalformedPacket
from tests.support.runs import for_each


class TestFixedWidth:
    """Two and four byte integers, big-endian."""

    @for_each("value", [-1, 65_536])
    def test_two_bytes_refused(self, value: int) -> None:
        with pytest.raises(ValueError, match="two bytes"):
            primitives.two_bytes(value)

    @for_each("value", [-1, 4_294_967_296])
    def test_four_bytes_refused(self, value: int) -> None:
        with pytest.raises(ValueError, match="four bytes"):
            primitives.four_bytes(value)

    @for_each("size", [0, 1, 2, 3])
    def test_end_is_respected(self, size: int) -> None:
        """More bytes lie behind `end`; they are not this packet's."""
        data = b"\x00\x01abcdefgh"
        with pytest.raises(MalformedPacket):
            Reader(data, 0, size).four_bytes()
        if size < 2:
            with pytest.raises(MalformedPacket):
                Reader(data, 0, size).two_bytes()
        if size < 1:
            with pytest.raises(MalformedPacket):
                Reader(data, 0, size).byte()
        if size < 3:
            with pytest.raises(MalformedPacket):
                Reader(data, 0, size).binary()
