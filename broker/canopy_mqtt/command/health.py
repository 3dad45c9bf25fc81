"""Checks that a broker serves MQTT: one CONNECT, one CONNACK, and the state of its store in `$SYS`.

Owns the check behind `canopy health`, which containers and supervisors call. Promises: it ends within the given time,
leaves no session behind, and judges by an MQTT answer, not by an open port. A broker that answers "not authorised" to
an anonymous client is healthy: it refuses such clients as it should. A given user has to be admitted. A broker whose
store cannot be written is unhealthy, if the client may read the topic.
"""

from __future__ import annotations

import secrets
import ssl
from typing import Annotated, Final

import typer

from canopy_mqtt.client.address import BrokerAddress
from canopy_mqtt.client.blocking import BlockingClient
from canopy_mqtt.client.failures import LostError, RefusedError, told
from canopy_mqtt.client.machine import ClientMachine, connect_packet
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import V311, Publish
from canopy_mqtt.files import check_files
from canopy_mqtt.settings import Endpoint, parse_endpoint
from canopy_mqtt.settings.environment import HEALTH_PASSWORD, HEALTH_TARGET, HEALTH_USER
from canopy_mqtt.settings.values import MAX_STRING_BYTES
from canopy_mqtt.terminal import MISUSED, fail

KEEP_ALIVE: Final = 10
"""Seconds after which the broker ends the session of a killed check, and one half more."""
STORE_STATE: Final = "$SYS/broker/store/state"
WRITTEN: Final = b"written"
"""The value while the store works (`canopy_mqtt.assembly.storing`)."""
MAX_REASON_LENGTH: Final = 200
"""Characters of the state that are repeated."""
MAX_PACKET: Final = 65_536
"""Bytes of the largest packet that is read."""
REFUSALS: Final = frozenset({reason_codes.BAD_USER_NAME_OR_PASSWORD, reason_codes.NOT_AUTHORIZED})
"""Reason codes by which a healthy broker refuses a client without a user name."""

REFUSES_STRANGERS: Final = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
"""OpenSSL's name of the alert of a broker that requires a client certificate (RFC 8446, section 6.2)."""


app = typer.Typer(rich_markup_mode=None)


class UnhealthyError(Exception):
    """The reason in one line why the broker is unhealthy."""


@app.command()
def health(
    target: Annotated[
        str, typer.Option(metavar="URL", envvar=HEALTH_TARGET, help="The broker to check.")
    ] = "mqtt://127.0.0.1:1883",
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="How long to wait for an answer.")] = 5.0,
    user: Annotated[
        str | None,
        typer.Option(metavar="NAME", envvar=HEALTH_USER, help="A user name that the broker has to accept."),
    ] = None,
    password: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            envvar=HEALTH_PASSWORD,
            show_envvar=True,
            help="Its password; other users of this machine can see the option, but not the variable.",
        ),
    ] = None,
    ca: Annotated[
        str, typer.Option(metavar="FILE", help="With mqtts: the authorities to trust (PEM), instead of the system's.")
    ] = "",
    cert: Annotated[str, typer.Option(metavar="FILE", help="With mqtts: the client certificate (PEM).")] = "",
    key: Annotated[str, typer.Option(metavar="FILE", help="With mqtts: the private key of --cert (PEM).")] = "",
    server_name: Annotated[
        str, typer.Option(metavar="NAME", help="With mqtts: the name in the broker's certificate, if not the host.")
    ] = "",
) -> None:
    """Check that a running broker serves MQTT. The exit code is 0 if it does and 1 if it does not.

    URL is mqtt://HOST:PORT, mqtts://HOST:PORT or mqtt+unix:///PATH. Without --user a broker that refuses anonymous
    clients is healthy. With --user the broker has to accept the user. If the user may read $SYS, a broker whose store
    cannot be written is not healthy.
    """
    try:
        address = parse_endpoint(target)
    except ValueError as error:
        fail(f"--target {target}: allowed: {error}", MISUSED)
    if address.scheme in ("ws", "wss"):
        fail(f"--target {target}: a check speaks MQTT over TCP, TLS or a Unix socket, and not over WebSocket", MISUSED)
    if not address.tls and (ca or cert or key or server_name):
        fail("--ca, --cert, --key and --server-name are for an mqtts:// target", MISUSED)
    if password is not None and user is None:
        fail("--password needs --user: MQTT 3.1.1 has no password without a user name", MISUSED)
    try:
        trusted = context(ca, cert, key) if address.tls else None
        check(address, timeout, user, password, trusted, server_name)
    except UnhealthyError as error:
        fail(str(error))
    typer.echo(f"{address.url()}: OK")


def context(ca: str = "", certificate: str = "", key: str = "") -> ssl.SSLContext:
    """Make the TLS context of a check. Files are PEM; `ca` "": the system's authorities.

    Raises:
        UnhealthyError: one of the files cannot be used.
    """
    file = ca
    try:
        check_files(ca)
        made = ssl.create_default_context(cafile=ca or None)
        if certificate:
            file = certificate
            check_files(certificate, key)
            made.load_cert_chain(certificate, key or None, _no_password)
    except (OSError, ValueError) as error:
        words = "no such PEM in it, or a key that needs a password"
        if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
            words = error.strerror or str(error)
        raise UnhealthyError(f"{file}: cannot be used: {words}") from None
    return made


def _no_password() -> str:
    # Without this OpenSSL would ask on the terminal.
    return ""


def check(
    address: Endpoint,
    timeout: float = 5.0,
    user: str | None = None,
    password: str | None = None,
    tls: ssl.SSLContext | None = None,
    server_name: str = "",
) -> None:
    """Connect to the broker at `address` and wait for its CONNACK.

    Args:
        address: where it listens, by TCP, TLS or a Unix socket.
        timeout: seconds for each step (connecting, the answer).
        user: a user name that has to be let in, and
        password: its password, if it has one.
        tls: over TLS, what is trusted and shown; None: what the system trusts.
        server_name: the host name that the broker's certificate has to be for; empty: that of the address.

    Raises:
        UnhealthyError: no connection, no answer in time, or an answer that is no MQTT service; a refused user; or a
            store that cannot be written.
    """
    if any(len((text or "").encode()) > MAX_STRING_BYTES for text in (user, password)):
        raise UnhealthyError(f"a user name or password of more than {MAX_STRING_BYTES} bytes cannot be sent")
    # Another client each time, whose session ends with its connection.
    connect = connect_packet(
        f"canopy-health-{secrets.token_hex(4)}",
        version=V311,
        keep_alive=KEEP_ALIVE,
        user_name=user,
        password=password,
        max_packet_size=MAX_PACKET,
    )
    with BlockingClient(_where(address, tls, server_name), ClientMachine(connect), timeout=timeout) as client:
        try:
            client.connect()
        except RefusedError as error:
            if user is None and error.reason_code in REFUSALS:
                return
            raise UnhealthyError(f"{address.url()}: refused: {told(error.reason_code)}") from None
        except LostError as error:
            cause = error.__cause__
            if isinstance(cause, ssl.SSLError) and cause.reason == REFUSES_STRANGERS and user is None:
                return
            raise UnhealthyError(f"{address.url()}: {_about(error, timeout)}") from None
        state = _store_state(client)
    if state not in (b"", WRITTEN):
        reason = "".join(char if char.isprintable() else "?" for char in state.decode(errors="replace"))
        raise UnhealthyError(f"{address.url()}: the store cannot be written: {reason[:MAX_REASON_LENGTH]}")


def _where(address: Endpoint, tls: ssl.SSLContext | None, server_name: str) -> BrokerAddress:
    if address.path:
        return BrokerAddress(unix=address.path)
    secured = (tls or context()) if address.tls else None
    return BrokerAddress(address.host, address.port, tls=secured, server_name=server_name)


def _about(error: LostError, timeout: float) -> str:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError):
        return _about_tls(cause)
    if isinstance(cause, ConnectionResetError):
        return "the connection was closed before a CONNACK"
    if cause is None and error.reason_code:
        return "the answer is no MQTT CONNACK"
    if cause is None or isinstance(cause, TimeoutError):
        return f"no answer within {timeout:g} s"
    if isinstance(cause, OSError):
        return cause.strerror or str(cause)
    # A name that cannot be one of a host, of the target or of --server-name.
    return f"not a host name: {cause}"


def _about_tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message} (--ca FILE, --server-name NAME)"
    if error.reason == REFUSES_STRANGERS:
        return "it asks for a certificate (--cert FILE, --key FILE)"
    return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"


def _store_state(client: BlockingClient) -> bytes:
    """Return the state of the broker's store; empty if it has none, or does not publish it to this client.

    Raises:
        UnhealthyError: the broker does not answer any more.
    """
    found: list[Publish] = []
    client.on_message = found.append
    try:
        client.subscribe(STORE_STATE)
        # What is retained comes before the answer to what is asked after it.
        client.ping()
    except LostError as error:
        if client.connected:
            raise UnhealthyError(str(error)) from None
    return next((each.payload for each in found if each.topic == STORE_STATE.encode()), b"")
