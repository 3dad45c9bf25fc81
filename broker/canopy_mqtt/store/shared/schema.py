"""The tables of a shared store, as an operator reads them with psql.

Owns the schema and its version. Promises: times are by the clock of the database; what a node may change is changed by
the functions of `functions`, which look whether it still may.

Deliveries and messages are written into the current one of `SLOTS` partitions, and deleted there. What has waited long
is moved to one more partition, `LONG`, and the old one is truncated: so a table does not grow by what went through it.
A delivery and its message are always in the same slot.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 3
"""The version of the schema, in the table `cluster`. No release made an earlier one."""
SLOTS: Final = 4
"""Slots that are written in turn: the current one, the one before, one that is emptied, and an empty one."""
LONG: Final = 9
"""The slot of what has waited long."""
CLEARED: Final = "10 minutes"
"""How long it is kept that a topic was cleared. A node that has not heard of changes for half of that reads all."""
FILTER_BYTES: Final = 480
"""Bytes that a subscription counts beside its filter's name: about what a node keeps of a filter in memory."""
NEVER: Final = 4_294_967_295
"""The Session Expiry Interval, in seconds, of a session that does not expire (3.1.2.11.2)."""

TABLES: Final = f"""
CREATE SEQUENCE session_id;
CREATE SEQUENCE message_id CACHE 1;    -- drawn under the lock of a node's row, so in the order of its groups
CREATE TABLE cluster (
    version integer NOT NULL,
    name text NOT NULL,                -- of the cluster (cluster.name)
    id uuid NOT NULL DEFAULT gen_random_uuid()  -- by which nodes find out whether they have the same one
);
CREATE TABLE node (
    id smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    incarnation integer NOT NULL,      -- one more with each start, and when it comes back after it was declared dead
    alive boolean NOT NULL,            -- false: declared dead, or it has stopped
    holder text NOT NULL,              -- the process of its incarnation; empty: its machine does not tell
    version text NOT NULL,             -- of its Canopy
    speaks integer[] NOT NULL          -- the versions of node links that it knows
);
CREATE TABLE beat (
    node smallint PRIMARY KEY,
    at timestamptz NOT NULL            -- when the node showed a sign of life last
) WITH (fillfactor = 50);
CREATE TABLE progress (                -- each node's last group, and earlier ones that are not trimmed yet
    node smallint NOT NULL,
    grp bigint NOT NULL,               -- goes on over incarnations
    incarnation integer,               -- NULL: not a group, but the number that an incarnation began with
    last_id bigint NOT NULL,           -- no message of this node with an id up to this can appear any more
    lost owner[] NOT NULL,             -- what the answer said
    failed delivery_key[] NOT NULL,
    PRIMARY KEY (node, grp)
);
CREATE TABLE session (
    id bigint PRIMARY KEY,             -- another one after a clean start; never used again
    client_id text COLLATE "C" NOT NULL UNIQUE,  -- $share/NAME/FILTER: the queue of a share group
    node smallint,                     -- NULL: its client is away
    incarnation integer NOT NULL,      -- of the node
    epoch bigint NOT NULL,             -- one more with each claim; nothing counts that was noted under an earlier one
    principal text NOT NULL,           -- JSON: whose it is
    expiry bigint NOT NULL,            -- seconds; {NEVER}: does not expire
    expires_at timestamptz,            -- NULL: its client is connected
    account text NOT NULL DEFAULT '',  -- for whose limits it counts: "user NAME" or "address ADDRESS"
    filters bigint NOT NULL DEFAULT 0  -- bytes that count for its subscriptions
) WITH (fillfactor = 80);
CREATE INDEX session_expires ON session (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX session_owned ON session (node, incarnation, id) WHERE node IS NOT NULL;
CREATE INDEX session_account ON session (account);
CREATE TABLE garbage (
    session bigint PRIMARY KEY         -- has ended; what is left of it is deleted in batches
);
CREATE TABLE filter (                  -- the topic filters of all sessions, each once
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    gone boolean NOT NULL,             -- true: no session has it
    node smallint NOT NULL,            -- which node changed the row last, and in which of its groups:
    grp bigint NOT NULL,               -- a node that knows a number reads what follows
    share bigint                       -- of $share/NAME/FILTER: the queue of the group, a session without a client
);
CREATE INDEX filter_feed ON filter (node, grp);
CREATE TABLE subscription (
    session bigint NOT NULL,
    filter integer NOT NULL,
    qos smallint NOT NULL,
    no_local boolean NOT NULL,
    retain_as_published boolean NOT NULL,
    retain_handling smallint NOT NULL,
    identifier bigint NOT NULL,        -- 0: none
    PRIMARY KEY (session, filter)
);
CREATE UNIQUE INDEX subscription_filter ON subscription (filter, session)
INCLUDE (qos, no_local, retain_as_published, identifier);
CREATE TABLE message (
    slot smallint NOT NULL,
    id bigint NOT NULL,
    topic text NOT NULL,
    payload bytea NOT NULL,
    qos smallint NOT NULL,
    retain boolean NOT NULL,
    properties bytea,                  -- encoded as in MQTT 5.0
    publisher text,
    expires_at timestamptz,            -- NULL: never
    PRIMARY KEY (id, slot)
) PARTITION BY LIST (slot);
CREATE TABLE delivery (
    slot smallint NOT NULL,
    session bigint NOT NULL,
    source bigint NOT NULL,            -- 0; the share group through which it came
    id bigint NOT NULL,                -- of the message
    qos smallint NOT NULL,
    state smallint NOT NULL,           -- 0 queued, 1 sent, 2 released
    packet_id integer NOT NULL,        -- 0: not sent
    retain boolean NOT NULL,           -- as it is sent
    identifiers bigint[],              -- of the subscriptions; NULL: none
    PRIMARY KEY (session, source, id, slot)
) PARTITION BY LIST (slot);
CREATE TABLE received (                -- QoS 2 publishes between PUBLISH and PUBREL
    session bigint NOT NULL,
    packet_id integer NOT NULL,
    PRIMARY KEY (session, packet_id)
);
CREATE TABLE will (                    -- of a connection, and published by the transaction that deletes its row
    session bigint NOT NULL,
    epoch bigint NOT NULL,             -- of the claim for the connection
    node smallint NOT NULL,            -- which says what becomes of it, and publishes it
    incarnation integer NOT NULL,      -- of the node
    client_id text NOT NULL,
    principal text NOT NULL,           -- JSON: whose it is
    topic text NOT NULL,
    payload bytea NOT NULL,
    qos smallint NOT NULL,
    retain boolean NOT NULL,
    properties bytea,
    expiry bigint,                     -- seconds, from its publication; NULL: never
    delay bigint NOT NULL,             -- seconds from the end of the connection
    due timestamptz,                   -- NULL: its client is connected
    PRIMARY KEY (session, epoch)
);
CREATE INDEX will_owned ON will (node, incarnation, session, epoch);
CREATE INDEX will_of ON will (client_id, session, epoch);
CREATE INDEX will_due ON will (node, incarnation, due) WHERE due IS NOT NULL;
CREATE SEQUENCE retained_version;
CREATE TABLE retained (
    topic text COLLATE "C" PRIMARY KEY,
    payload bytea,                     -- NULL: the topic was cleared; nodes have {CLEARED} to hear of it
    qos smallint NOT NULL,
    properties bytea,
    publisher text,
    account text,                      -- whose room it takes; NULL: the broker's own
    expires_at timestamptz,            -- NULL: never; then the row is deleted
    version bigint NOT NULL,           -- another one with each change
    node smallint NOT NULL,            -- as in filter
    grp bigint NOT NULL
);
CREATE INDEX retained_feed ON retained (node, grp);
CREATE INDEX retained_expires ON retained (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE slots (                   -- one row
    current smallint NOT NULL,
    changed timestamptz NOT NULL
);
INSERT INTO slots VALUES (0, clock_timestamp());
"""

TYPES: Final = """
CREATE TYPE owner AS (session bigint, epoch bigint);
CREATE TYPE delivery_key AS (session bigint, source bigint, id bigint);
CREATE TYPE publish AS (
    session bigint,                    -- NULL: of a clean session; then a QoS 2 publish comes once by its node's word
    epoch bigint, packet_id integer,
    topic text, payload bytea, qos smallint, retain boolean, properties bytea, publisher text,
    expiry bigint,                     -- seconds; NULL: never
    filters integer[],                 -- what it matches
    retained boolean,                  -- true: its topic's message from now on; false: the topic is cleared
    account text,                      -- of what is retained
    replaces bigint,                   -- the version that it replaces, and no other; NULL: any
    will owner                         -- the will that it is, and that ends by this; NULL: it is none
);
CREATE TYPE completion AS (session bigint, epoch bigint, packet_id integer);
CREATE TYPE subscribe AS (
    session bigint, epoch bigint, filter text,
    qos smallint,                      -- NULL: UNSUBSCRIBE
    no_local boolean, retain_as_published boolean, retain_handling smallint, identifier bigint
);
CREATE TYPE change AS (
    session bigint,
    epoch bigint,                      -- NULL: counts whoever has the session
    source bigint, id bigint,
    slot smallint,                     -- where it was read
    state smallint,                    -- 1 sent, 2 released, 3 acknowledged: it is deleted
    packet_id integer
);
CREATE TYPE release AS (
    session bigint, epoch bigint,
    expiry bigint                      -- seconds; NULL: as it was claimed
);
CREATE TYPE new_will AS (
    session bigint, epoch bigint, topic text, payload bytea, qos smallint, retain boolean, properties bytea,
    expiry bigint, delay bigint        -- as in the table
);
CREATE TYPE ended_will AS (
    session bigint, epoch bigint,
    delay bigint                       -- seconds until it is due; NULL: it goes, as a publish of the group or not
);
CREATE TYPE hint AS (
    session bigint,
    messages integer,                  -- how many are new in it
    id bigint                          -- the last one
);
CREATE TYPE written AS (
    result text,                       -- over, again, rematch, written
    news boolean,                      -- filters have changed that the node does not know
    retained boolean,                  -- and retained messages
    lost owner[],                      -- sessions that are others'; nothing of theirs was written
    failed delivery_key[],             -- what is not to be sent; (session, -1, epoch): a will
    hints hint[]                       -- sessions that have got something
);
CREATE TYPE claimed AS (
    session bigint, epoch bigint, present boolean,
    hints delivery_key[]               -- deliveries that are new in queues of share groups
);
CREATE TYPE member AS (session bigint, epoch bigint, room integer);
CREATE TYPE waiting AS (
    slot smallint, source bigint, id bigint, qos smallint, state smallint, packet_id integer, retain boolean,
    identifiers bigint[], topic text, payload bytea, properties bytea, publisher text,
    expiry bigint                      -- seconds that are left; NULL: never
);
"""

PARTITIONS: Final = "".join(
    f"CREATE TABLE {table}_{slot} PARTITION OF {table} FOR VALUES IN ({slot})"
    f"{' WITH (autovacuum_enabled = off)' if slot != LONG else ''};\n"
    for table in ("message", "delivery")
    for slot in (*range(SLOTS), LONG)
)
"""Autovacuum would find nothing to do: a slot is truncated. Its TRUNCATE waits for nobody who vacuums."""
