"""Computes a client's mount from its listener's mount and the client's names.

Owns `mount_of`, and the mount of a will; `codec.mounted_names` handles the names. Promises: clients with different
names never get the same mount, because a name that would change the number of levels is refused at CONNECT, and
settings allow one placeholder in a level.
"""

from __future__ import annotations

from typing import Final

from broker.core.codec import reasons
from broker.core.codec.errors import Refused
from broker.core.codec.mounted_names import outer_properties, outer_topic
from broker.core.codec.packets import Will
from broker.core.principal import Principal

LONGEST_MOUNT: Final = 1_024
"""Bytes of a mount with the names in it. It stands before each topic and filter of its client: a user name may have
65,535, and would make as much of a topic of one."""


def mount_of(template: str, principal: Principal) -> str:
    """The mount of a client: `{user}`, `{client}` and `{listener}` filled in; empty where the listener has none.

    Raises:
        Refused: a name that cannot stand there. 0x85 for the client identifier, which the client may choose anew; else
            0x87, also where there is no user name.
    """
    if not template:
        return ""
    made = "/".join([_filled(level, principal) for level in template.split("/")])
    if made.startswith("$"):
        raise Refused("the topic prefix of this client would begin with $", reasons.NOT_AUTHORIZED)
    if len(made.encode()) > LONGEST_MOUNT:
        raise Refused(f"the topic prefix of this client has more than {LONGEST_MOUNT} bytes", reasons.NOT_AUTHORIZED)
    return made


def _filled(level: str, principal: Principal) -> str:
    """A level with the name that it asks for, if it asks for one."""
    if "{" not in level:
        return level
    for placeholder, name, code in (
        ("{user}", principal.user_name or "", reasons.NOT_AUTHORIZED),
        ("{client}", principal.client_id, reasons.CLIENT_IDENTIFIER_NOT_VALID),
        ("{listener}", principal.listener, reasons.NOT_AUTHORIZED),
    ):
        if placeholder in level:
            if not name or any(sign in name for sign in "/+#\0"):
                raise Refused(f"no topic can be named after this client's {placeholder}", code)
            return level.replace(placeholder, name)
    return level


def mounted_will(will: Will, mount: str) -> Will:
    """A client's will as the broker publishes it.

    Raises:
        Refused: its topic, or its Response Topic, has no name there (0x87).
    """
    prefix = mount.encode()
    topic = outer_topic(prefix, will.topic.encode())
    properties = outer_properties(prefix, will.properties)
    if topic is None or properties is None:
        raise Refused("a will to a topic that is not below the mount of the listener", reasons.NOT_AUTHORIZED)
    return Will(topic.decode(), will.payload, will.qos, will.retain, will.delay, will.message_expiry, properties)
