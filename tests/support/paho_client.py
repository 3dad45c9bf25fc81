"""Closes what paho-mqtt leaves to the garbage collector."""

from __future__ import annotations

import paho.mqtt.client as mqtt


def close_wakeup_sockets(client: mqtt.Client) -> None:
    """Close the pair of sockets with which paho wakes its thread; the thread has ended.

    paho closes them in `__del__`. A client that callbacks refer to is freed by the garbage collector, which may
    finalize the sockets first: they warn of themselves then, in whichever test runs.
    """
    for end in (client._sockpairR, client._sockpairW):
        if end is not None:
            end.close()
    client._sockpairR = client._sockpairW = None
