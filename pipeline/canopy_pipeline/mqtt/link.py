"""The connection of the source and the sink to a broker: the options as the client's words, and its errors as ours.

The client (`canopy_mqtt.client.blocking`) is driven by the thread that uses it, so that nothing is acknowledged beside
the disk that is to hold it.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from canopy_mqtt.client.address import BrokerAddress
from canopy_mqtt.client.blocking import BlockingClient
from canopy_mqtt.client.failures import FAILURE, ClientError, told
from canopy_mqtt.client.machine import MOST, ClientMachine, connect_packet
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import V5, V311, SubscriptionRequest
from canopy_pipeline.errors import PipelineError
from canopy_pipeline.mqtt.mqtt_options import Broker

RETAIN_IF_NEW = 1
"""Retain Handling: retained messages for a subscription that was not there before."""


def broker_client(
    broker: Broker,
    client_id: str,
    *,
    session_expiry: int = 0,
    receive_maximum: int = MOST,
    hold: bool = False,
) -> BlockingClient:
    """Return an unconnected client. `session_expiry` 0: the session begins clean and ends with the connection. With
    `hold` nothing is acknowledged before `acknowledge`. `receive_maximum` bounds what a broker of MQTT 5.0 sends before
    that.

    Raises:
        PipelineError: a file of certificates cannot be used.
    """
    connect = connect_packet(
        client_id,
        version=V5 if broker.version == "5" else V311,
        clean_start=not session_expiry,
        keep_alive=broker.keep_alive,
        user_name=broker.user_name,
        password=broker.password,
        session_expiry=session_expiry,
        receive_maximum=receive_maximum,
    )
    address = BrokerAddress(broker.host, broker.port, tls=_tls(broker) if broker.tls else None)
    return BlockingClient(address, ClientMachine(connect, hold=hold), timeout=broker.connect_timeout)


def subscribe(link: BlockingClient, filters: Sequence[str], qos: int, gone: Sequence[str] = ()) -> None:
    """Subscribe, wait for SUBACK, and unsubscribe from the filters `gone`. Messages may arrive meanwhile.

    With MQTT 5.0 retained messages come only for a subscription that was not there before.

    Raises:
        PipelineError: the broker refuses a filter.
        ClientError: there is no connection any more, or no SUBACK.
    """
    if gone:
        link.machine.unsubscribe(gone)
    handling = RETAIN_IF_NEW if link.machine.connect.version == V5 else 0
    answer = link.subscribe(*(SubscriptionRequest(each, qos, retain_handling=handling) for each in filters))
    for topic_filter, reason in zip(filters, answer.reason_codes, strict=True):
        if reason >= FAILURE:
            raise PipelineError(f"{link.address}: the broker refuses the filter {topic_filter!r}: {told(reason)}")


def failed(error: ClientError) -> PipelineError:
    """Return the job's error for a lost or refused connection."""
    hint = "; each query needs its own client_id" if error.reason_code == reason_codes.SESSION_TAKEN_OVER else ""
    return PipelineError(f"{error}{hint}")


def _tls(broker: Broker) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=broker.tls_ca)
        if broker.tls_cert is not None:
            context.load_cert_chain(broker.tls_cert, broker.tls_key, password="")  # nobody is asked for it
    except (ssl.SSLError, OSError) as error:
        raise PipelineError(
            f"option 'tls_ca', 'tls_cert' or 'tls_key' names a file that is no PEM ({error})"
        ) from error
    if broker.tls_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
