"""The tables of a store in PostgreSQL, as an operator reads them with psql.

Owns the schema and its version. Promises: times are seconds of the store's own time (`times`; the table `owner` says
how far that is from the broker's system clock), texts are texts, and topics of deliveries that several sessions share
are stored once. A message of several deliveries is removed with the last of them, in the same statement.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 2
"""The version of the schema, in the table `canopy`."""

SCHEMA: Final = """
CREATE TABLE canopy (
    version integer NOT NULL
);
CREATE TABLE owner (                   -- one row: whose the tables are, and how far they are written
    node text NOT NULL,                -- which broker, for people
    holder text NOT NULL,              -- which process (lease_holder.py): the next one there sees when it is dead
    epoch bigint NOT NULL,             -- one more with each broker that takes them; an earlier one cannot write
    lease_until timestamptz NOT NULL,  -- until when nobody else takes them, by the clock of the database
    groups bigint NOT NULL,            -- the number of the group that was written last
    time double precision,             -- the store's own time when this was noted, in which all others are
    wall double precision,             -- and the system's clock of the broker, in seconds since the epoch
    uptime double precision,           -- and the seconds since its system was started
    boot text,                         -- which start that was; empty: that system has no name for it
    clock_checksum bigint
) WITH (fillfactor = 10);
CREATE TABLE session (
    id bigint PRIMARY KEY,             -- never used again
    client_id text COLLATE "C" NOT NULL UNIQUE,
    principal text NOT NULL,           -- JSON: whose it is
    expiry_interval bigint NOT NULL,   -- seconds; 4294967295: does not expire; 0: no session, its will alone
    disconnected_at double precision,  -- NULL: connected
    will_topic text,                   -- NULL: no will
    will_payload bytea,
    will_qos smallint,
    will_retain boolean,
    will_delay bigint,
    will_message_expiry bigint,
    will_properties bytea,
    will_due double precision,         -- NULL: its client is connected
    checksum bigint NOT NULL,          -- of all but the will (groups/checksums.py)
    will_checksum bigint               -- NULL: no will
);
CREATE TABLE gone_session (
    id bigint PRIMARY KEY              -- its subscriptions, deliveries and identifiers are removed in the background
);
CREATE TABLE subscription (
    session bigint NOT NULL,
    filter text COLLATE "C" NOT NULL,  -- with $share/name/ where it is shared
    qos smallint NOT NULL,
    no_local boolean NOT NULL,
    retain_as_published boolean NOT NULL,
    retain_handling smallint NOT NULL,
    identifier bigint NOT NULL,        -- 0: none
    streaming boolean NOT NULL,        -- retained messages are on their way
    queue_policy smallint,             -- NULL: nothing was asked of its queue
    queue_max_age double precision,
    queue_depth bigint,
    checksum bigint NOT NULL,          -- bit 32: streaming
    PRIMARY KEY (session, filter)
);
CREATE TABLE message (
    id bigint PRIMARY KEY,
    refs bigint NOT NULL,              -- deliveries that point here
    topic text NOT NULL,
    payload bytea NOT NULL,
    qos smallint NOT NULL,
    retain boolean NOT NULL,
    properties bytea,                  -- encoded as in MQTT 5.0
    publisher text,
    expires_at double precision,       -- NULL: never
    checksum bigint NOT NULL           -- from bit 32 on: refs
);
CREATE TABLE delivery (
    number bigint PRIMARY KEY,         -- the order in which deliveries of a session were queued
    session bigint NOT NULL,
    message bigint,                    -- NULL: the message stands here, or is needed no more (state 2)
    state smallint NOT NULL DEFAULT 0, -- 0 queued, 1 sent, 2 released
    packet_id integer NOT NULL DEFAULT 0,
    attempts bigint NOT NULL DEFAULT 0,
    qos smallint NOT NULL,
    retain boolean NOT NULL DEFAULT false,
    identifiers text,                  -- subscription identifiers, as a JSON list
    share text,                        -- the shared subscription that it was chosen for
    topic text,
    payload bytea,
    publish_qos smallint,
    publish_retain boolean DEFAULT false,
    properties bytea,
    publisher text,
    expires_at double precision,
    size bigint,                       -- of one that waits here alone: the bytes that it counts for
    checksum bigint NOT NULL,          -- of all but the three that change
    state_checksum bigint NOT NULL DEFAULT 0 -- of packet_id and attempts; from bit 32 on: state
);
CREATE INDEX delivery_paged ON delivery (session, number)
WHERE size IS NOT NULL AND state = 0;  -- what waits here alone, to be read back in its order; others cost it nothing
CREATE TABLE read_back (
    session bigint PRIMARY KEY,
    number bigint NOT NULL             -- deliveries with a size up to this one are in memory again
);
CREATE TABLE received (
    session bigint NOT NULL,
    packet_id integer NOT NULL,
    checksum bigint NOT NULL,
    PRIMARY KEY (session, packet_id)
);
CREATE TABLE retained (
    topic text COLLATE "C" PRIMARY KEY,
    payload bytea NOT NULL,
    qos smallint NOT NULL,
    properties bytea,
    publisher text,
    expires_at double precision,
    account text,                      -- the account that holds it; NULL: the broker's own
    checksum bigint NOT NULL
);
CREATE TABLE broadcast (
    id bigint PRIMARY KEY,             -- a message that goes to very many, and has not come to all of them
    topic text NOT NULL,
    payload bytea NOT NULL,
    qos smallint NOT NULL,
    retain boolean NOT NULL,
    properties bytea,
    publisher text,
    expires_at double precision,
    checksum bigint NOT NULL
);
CREATE TABLE passed (
    broadcast bigint NOT NULL,
    session bigint NOT NULL,           -- has had it, or came after it
    checksum bigint NOT NULL,
    PRIMARY KEY (broadcast, session)
);
"""


def removing(which: str) -> str:
    """Return a statement that removes deliveries, and the shared messages that no other delivery points to."""
    return (
        f"WITH gone AS (DELETE FROM delivery WHERE {which} RETURNING message), "
        "counted AS (SELECT message AS id, count(*) AS n FROM gone WHERE message IS NOT NULL GROUP BY message), "
        "over AS (DELETE FROM message USING counted WHERE message.id = counted.id"
        " AND refs <= n AND checksum >> 32 <= n) UPDATE message SET refs = refs - n, checksum = checksum - (n << 32)"
        " FROM counted WHERE message.id = counted.id AND (refs > n OR checksum >> 32 > n)"
    )


FINISHED: Final = removing("number = ANY($1::bigint[])")
