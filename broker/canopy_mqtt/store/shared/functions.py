"""The functions of a shared store: all that changes it, in one call each.

A function has its version in its name: nodes of two releases use one schema, and a function is never changed.
`-- step: NAME` begins a statement that others may precede. `tests/cluster/model/functions.py` has the same functions
with the same steps, and tests run both side by side.
"""

from __future__ import annotations

from typing import Final

from canopy_mqtt.store.shared.calls import WILL
from canopy_mqtt.store.shared.schema import CLEARED, FILTER_BYTES, LONG, NEVER, SLOTS

# Isolation is READ COMMITTED: each statement sees what was committed when it began. So these rules hold:
# - A row is locked by a statement of its own. What depends on it is read by later ones.
# - Rows are locked in one order: node, session (by id), will (by its key), filter (by name), delivery (by session,
#   source, id), retained (by topic). Sweepers lock what is free (SKIP LOCKED).
# - The number of a group is written last, with what its answer says.
# - `sent` changes only what is queued, and a QoS 2 publish counts only where its row of `received` is new.
# - Answers of transactions that hold locks have numbers alone: a node that stopped reading would keep the locks.

PLANS: Final = """
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off
"""
"""Of functions whose statements are about few rows, which they find by an index. A plan that was made while a table was
empty would read all of it later. For the same reason `OFFSET 0` keeps what is looked up for each row from being joined
the other way round."""

PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the payloads that are read of a session, or of a node's retained messages or wills, at once. PostgreSQL
answers with up to 1 GB."""

JOIN: Final = """
CREATE FUNCTION join_1(
    p_name text, p_holder text, p_version text, p_speaks integer[], p_incarnation integer, p_grp bigint,
    OUT o_node smallint, OUT o_incarnation integer, OUT o_grp bigint, OUT o_failed delivery_key[]
)
LANGUAGE plpgsql AS $$
-- A node begins another incarnation: what an earlier one notes counts no more. o_grp: the number of its next group but
-- one; the first one is written here. p_holder: the process that it is; p_version: of its Canopy; p_speaks: versions of
-- node links that it knows. p_incarnation, p_grp: the group that the process asked for last; o_failed: what its answer
-- said; NULL: it is not written.
BEGIN
    SELECT id INTO o_node FROM node WHERE name = p_name FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO node (name, incarnation, alive, holder, version, speaks)
            VALUES (p_name, 0, false, p_holder, p_version, p_speaks) ON CONFLICT DO NOTHING;
        SELECT id INTO o_node FROM node WHERE name = p_name FOR UPDATE;
    END IF;
    -- step: join
    SELECT failed INTO o_failed FROM progress WHERE node = o_node AND grp = p_grp AND incarnation = p_incarnation;
    UPDATE node SET incarnation = incarnation + 1, alive = true, holder = p_holder, version = p_version,
            speaks = p_speaks
        WHERE id = o_node
        RETURNING incarnation INTO o_incarnation;
    INSERT INTO beat VALUES (o_node, clock_timestamp()) ON CONFLICT (node) DO UPDATE SET at = clock_timestamp();
    INSERT INTO progress
        SELECT o_node, coalesce(max(grp), 0) + 1, NULL, nextval('message_id'), '{}', '{}'
            FROM progress WHERE node = o_node
        RETURNING grp INTO o_grp;
    -- step: commit
END $$;
"""

BEAT: Final = """
CREATE FUNCTION beat_1(p_node smallint, p_incarnation integer) RETURNS boolean
LANGUAGE plpgsql AS $$
-- A node shows that it is alive. False: this incarnation is over.
BEGIN
    UPDATE beat SET at = clock_timestamp()
        WHERE node = p_node AND EXISTS (SELECT FROM node WHERE id = p_node AND incarnation = p_incarnation AND alive);
    RETURN FOUND;
END $$;
"""

DECLARE_DEAD: Final = """
CREATE FUNCTION declare_dead_1(p_node smallint, p_incarnation integer, p_seen timestamptz) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
-- Declare a node dead, unless it has shown a sign of life since p_seen. It waits for the group that is being written.
DECLARE
    dies boolean;
BEGIN
    PERFORM FROM node WHERE id = p_node FOR UPDATE;
    -- step: dead
    UPDATE node SET alive = false
        WHERE id = p_node AND incarnation = p_incarnation AND alive
            AND p_seen = (SELECT at FROM beat WHERE node = p_node);
    dies := FOUND;
    -- step: commit
    RETURN dies;
END $$;
"""

LOOK: Final = f"""
CREATE FUNCTION look_1()
RETURNS TABLE (
    o_id smallint, o_name text, o_incarnation integer, o_alive boolean, o_seen timestamptz, o_orphans boolean,
    o_wills boolean
)
LANGUAGE plpgsql {PLANS} AS $$
-- All nodes. o_orphans: whether there are sessions or wills of its incarnations that are over; o_wills: whether wills
-- of the one that lives are due.
DECLARE
    by_now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
        SELECT n.id, n.name, n.incarnation, n.alive, b.at, EXISTS (
                SELECT FROM session s WHERE s.node = n.id AND s.incarnation < n.incarnation + (NOT n.alive)::integer
            ) OR EXISTS (
                SELECT FROM will w WHERE w.node = n.id AND w.incarnation < n.incarnation + (NOT n.alive)::integer
            ), n.alive AND EXISTS (
                SELECT FROM will w WHERE w.node = n.id AND w.incarnation = n.incarnation AND w.due <= by_now
            )
            FROM node n JOIN beat b ON b.node = n.id ORDER BY n.id;
END $$;
"""

WILLS: Final = f"""
CREATE FUNCTION wills_1(p_node smallint, p_incarnation integer, p_limit integer)
RETURNS TABLE (
    o_session bigint, o_epoch bigint, o_client_id text, o_principal text, o_topic text, o_payload bytea,
    o_qos smallint, o_retain boolean, o_properties bytea, o_expiry bigint
)
LANGUAGE plpgsql {PLANS} AS $$
-- Wills of a node that are due, p_limit at most, and of them about {PAGE_BYTES} bytes. A will waits for earlier ones of
-- its client, also where these are other nodes': a later connection's must not come first.
DECLARE
    by_now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
        SELECT session, epoch, client_id, principal, topic, payload, qos, retain, properties, expiry
            FROM (
                SELECT *, sum(octet_length(payload)) OVER (ORDER BY due, session, epoch) - octet_length(payload)
                        AS before
                    FROM (
                        SELECT * FROM will w WHERE node = p_node AND incarnation = p_incarnation AND due <= by_now
                                AND NOT EXISTS (
                                    SELECT FROM will e WHERE e.client_id = w.client_id
                                        AND (e.session, e.epoch) < (w.session, w.epoch)
                                )
                            ORDER BY due, session, epoch LIMIT p_limit
                    ) page
            ) sized
            WHERE before < {PAGE_BYTES};
END $$;
"""

FEED: Final = """
CREATE FUNCTION feed_1(p_nodes smallint[], p_grps bigint[])
RETURNS TABLE (o_id integer, o_name text, o_gone boolean, o_node smallint, o_grp bigint, o_share bigint)
LANGUAGE sql STABLE AS $$
    -- The filters that changed after the group that is known of each node. Groups of a node commit in the order of
    -- their numbers, so there are no gaps.
    SELECT f.id, f.name, f.gone, f.node, f.grp, f.share
        FROM node n
        LEFT JOIN unnest(p_nodes, p_grps) AS v (node, grp) ON v.node = n.id
        CROSS JOIN LATERAL (SELECT * FROM filter WHERE node = n.id AND grp > coalesce(v.grp, 0) OFFSET 0) f
$$;
"""

RETAINED: Final = f"""
CREATE FUNCTION retained_1(p_nodes smallint[], p_grps bigint[], p_limit integer)
RETURNS TABLE (
    o_topic text, o_payload bytea, o_qos smallint, o_properties bytea, o_publisher text, o_account text,
    o_expiry bigint, o_version bigint, o_node smallint, o_grp bigint
)
LANGUAGE sql STABLE AS $$
    -- The topics whose retained message changed after the group that is known of each node: whole groups, about p_limit
    -- topics and {PAGE_BYTES} bytes of each node. What has expired is as cleared.
    SELECT topic, CASE WHEN expires_at <= clock_timestamp() THEN NULL ELSE payload END, qos, properties, publisher,
            account, ceil(extract(epoch FROM expires_at - clock_timestamp()))::bigint, sized.version, sized.node,
            sized.grp
        FROM node n
        LEFT JOIN unnest(p_nodes, p_grps) AS v (node, grp) ON v.node = n.id
        CROSS JOIN LATERAL (
            SELECT page.*, coalesce(sum(octet_length(payload)) OVER (
                    ORDER BY page.grp RANGE UNBOUNDED PRECEDING EXCLUDE GROUP
                ), 0) AS before
                FROM (
                    SELECT * FROM retained WHERE node = n.id AND grp > coalesce(v.grp, 0)
                        ORDER BY grp FETCH FIRST (p_limit) ROWS WITH TIES
                ) page
        ) sized
        WHERE sized.before < {PAGE_BYTES}
$$;
"""

OF_GROUP: Final = r"'^\$share/[^/]+/(.*)$'"
"""Takes the filter of a share group out of that of a shared subscription."""

COLUMNS: Final = """session, epoch, packet_id, topic, payload, qos, retain, properties, publisher, expiry, filters,
retained, account, replaces, will"""
"""Of the type `publish`."""

WRITE: Final = f"""
CREATE FUNCTION write_1(
    p_node smallint, p_incarnation integer, p_grp bigint,
    p_nodes smallint[], p_grps bigint[],   -- of each node, the group up to which its filters are known
    p_seen_nodes smallint[], p_seen_grps bigint[],  -- and its retained messages
    p_publishes publish[], p_completions completion[],
    p_subscribes subscribe[], p_ends text[],  -- p_ends: filters that go if no session has them
    p_changes change[], p_releases release[],
    p_reap integer,                        -- sessions of dead nodes to release, and wills to take over, at most
    p_new_wills new_will[] DEFAULT '{{}}', p_ended_wills ended_will[] DEFAULT '{{}}'
) RETURNS written
LANGUAGE plpgsql {PLANS} AS $$
-- Write a group of a node, once. In a group, a session has one change of each filter, packet identifier, delivery and
-- will.
#variable_conflict use_column
DECLARE
    said written := ('written', false, false, '{{}}', '{{}}', '{{}}');
    last bigint;
    chosen smallint;
    names text[];
    unused integer[];                      -- filters that go
    appeared boolean;
    a_name text;
    a_gone boolean;
    a_share bigint;
    owners owner[];
    counts boolean[];
    written boolean[];
    wills owner[];                         -- that end, or are taken over
    early owner[];                         -- that may not be published yet
    kept publish;
    numbers bigint[];
    reaped bigint[];
    given delivery_key[] := '{{}}';        -- what share groups have got back
    todo change[];
    here change[];
    moves boolean;                         -- some of `here` are not acknowledged
    hit delivery_key[];
BEGIN
    PERFORM FROM node WHERE id = p_node AND incarnation = p_incarnation AND alive FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        said.result := 'over';
        RETURN said;
    END IF;
    -- step: number
    SELECT lost, failed INTO said.lost, said.failed FROM progress WHERE node = p_node AND grp = p_grp;
    IF FOUND THEN
        -- Its answer was lost. This one writes, too, so that it comes when a standby has what the group wrote.
        UPDATE beat SET at = clock_timestamp() WHERE node = p_node;
        said.result := 'again';
        RETURN said;
    END IF;
    said.lost := '{{}}';
    said.failed := '{{}}';

    -- step: feed
    last := nextval('message_id');
    SELECT count(*) > 0, count(*) FILTER (WHERE NOT o_gone) > 0 INTO said.news, appeared FROM feed_1(p_nodes, p_grps);
    said.retained := EXISTS (
        SELECT FROM node n LEFT JOIN unnest(p_seen_nodes, p_seen_grps) AS v (node, grp) ON v.node = n.id
            CROSS JOIN LATERAL (SELECT FROM retained WHERE node = n.id AND grp > coalesce(v.grp, 0) LIMIT 1) r
    );
    IF appeared AND p_publishes <> '{{}}' THEN
        -- A filter that the node does not know: nothing is written, and the node matches its messages again.
        said.result := 'rematch';
        RETURN said;
    END IF;

    -- Fence: what only the owner of a session may change.
    owners := ARRAY(
        SELECT (session, epoch)::owner FROM unnest(p_publishes)
            WHERE (qos = 2 OR retained IS NOT NULL) AND session IS NOT NULL
        UNION SELECT (session, epoch)::owner FROM unnest(p_completions)
        UNION SELECT (session, epoch)::owner FROM unnest(p_subscribes)
        UNION SELECT (session, epoch)::owner FROM unnest(p_changes) WHERE epoch IS NOT NULL
        UNION SELECT (session, epoch)::owner FROM unnest(p_releases)
        UNION SELECT (session, epoch)::owner FROM unnest(p_new_wills)
    );
    IF owners <> '{{}}' THEN
        -- step: fence
        PERFORM FROM session WHERE id = ANY (ARRAY(SELECT session FROM unnest(owners)))
            ORDER BY id FOR NO KEY UPDATE;
        -- step: owners
        said.lost := ARRAY(
            SELECT (o.session, o.epoch)::owner FROM unnest(owners) o
                WHERE NOT EXISTS (SELECT FROM session s WHERE s.id = o.session AND s.epoch = o.epoch)
        );
        IF said.lost <> '{{}}' THEN
            p_completions := ARRAY(
                SELECT c::completion FROM unnest(p_completions) c WHERE (session, epoch)::owner <> ALL (said.lost)
            );
            p_subscribes := ARRAY(
                SELECT s::subscribe FROM unnest(p_subscribes) s WHERE (session, epoch)::owner <> ALL (said.lost)
            );
            p_changes := ARRAY(
                SELECT c::change FROM unnest(p_changes) c
                    WHERE epoch IS NULL OR (session, epoch)::owner <> ALL (said.lost)
            );
            p_releases := ARRAY(
                SELECT r::release FROM unnest(p_releases) r WHERE (session, epoch)::owner <> ALL (said.lost)
            );
            p_new_wills := ARRAY(
                SELECT w::new_will FROM unnest(p_new_wills) w WHERE (session, epoch)::owner <> ALL (said.lost)
            );
        END IF;
    END IF;

    IF p_new_wills <> '{{}}' OR p_ended_wills <> '{{}}' THEN
        -- step: wills
        INSERT INTO will
            SELECT w.session, w.epoch, p_node, p_incarnation, s.client_id, s.principal, w.topic, w.payload, w.qos,
                    w.retain, w.properties, w.expiry, w.delay
                FROM unnest(p_new_wills) w JOIN session s ON s.id = w.session;
        wills := ARRAY(
            SELECT (w.session, w.epoch)::owner FROM will w JOIN unnest(p_ended_wills) e USING (session, epoch)
                ORDER BY w.session, w.epoch FOR UPDATE OF w
        );
        -- step: ended
        -- A will that is published waits for earlier ones of its client, and is due meanwhile (wills_1).
        early := ARRAY(
            SELECT (w.session, w.epoch)::owner
                FROM unnest(p_publishes) p
                JOIN will w ON w.session = (p.will).session AND w.epoch = (p.will).epoch
                WHERE EXISTS (
                    SELECT FROM will e WHERE e.client_id = w.client_id AND (e.session, e.epoch) < (w.session, w.epoch)
                )
        );
        DELETE FROM will w USING unnest(p_ended_wills) e
            WHERE w.session = e.session AND w.epoch = e.epoch AND e.delay IS NULL
                AND (w.session, w.epoch)::owner <> ALL (early);
        UPDATE will w SET due = clock_timestamp() + least(coalesce(e.delay, 0), w.delay) * interval '1 second'
            FROM unnest(p_ended_wills) e
            WHERE w.session = e.session AND w.epoch = e.epoch AND w.due IS NULL
                AND (e.delay IS NOT NULL OR (w.session, w.epoch)::owner = ANY (early));
        wills := ARRAY(SELECT (session, epoch)::owner FROM unnest(wills) WHERE (session, epoch)::owner <> ALL (early));
        said.failed := ARRAY(
            SELECT ((will).session, {WILL}, (will).epoch)::delivery_key FROM unnest(p_publishes)
                WHERE will IS NOT NULL AND will <> ALL (wills)
        );
    END IF;

    -- written: of each publish, whether it counts. One of QoS 2 does where its row of `received` is new, and a will
    -- where its own was there.
    written := ARRAY(
        SELECT CASE WHEN will IS NOT NULL THEN will = ANY (wills)
            ELSE session IS NULL OR qos < 2 AND (retained IS NULL OR (session, epoch)::owner <> ALL (said.lost)) END
            FROM unnest(p_publishes)
    );
    IF EXISTS (SELECT FROM unnest(p_publishes) WHERE qos = 2 AND session IS NOT NULL) OR p_completions <> '{{}}' THEN
        -- step: received
        WITH fresh AS (
            INSERT INTO received
                SELECT session, packet_id FROM unnest(p_publishes)
                    WHERE qos = 2 AND session IS NOT NULL AND (session, epoch)::owner <> ALL (said.lost)
                ON CONFLICT DO NOTHING RETURNING session, packet_id
        )
        SELECT coalesce(array_agg(
                CASE WHEN qos < 2 OR session IS NULL THEN written[ordinality]
                    ELSE (session, packet_id) IN (SELECT session, packet_id FROM fresh)
                        AND (session, epoch)::owner <> ALL (said.lost) END
                ORDER BY ordinality
            ), '{{}}') INTO written
            FROM unnest(p_publishes) WITH ORDINALITY;
        DELETE FROM received r USING unnest(p_completions) c
            WHERE r.session = c.session AND r.packet_id = c.packet_id;
    END IF;

    names := ARRAY(SELECT DISTINCT filter FROM unnest(p_subscribes) WHERE qos IS NOT NULL);
    -- A share group has a queue, which subscribes.
    names := names || ARRAY(SELECT DISTINCT own FROM (SELECT substring(n FROM {OF_GROUP}) FROM unnest(names) n) s (own)
        WHERE own <> ALL (names));
    IF names <> '{{}}' OR p_ends <> '{{}}' THEN
        -- step: filters
        FOR a_name IN SELECT n FROM unnest(names || p_ends) n GROUP BY n ORDER BY n COLLATE "C" LOOP
            SELECT gone INTO a_gone FROM filter WHERE name = a_name FOR UPDATE;
            IF NOT FOUND AND a_name = ANY (names) THEN
                INSERT INTO filter (name, gone, node, grp) VALUES (a_name, false, p_node, p_grp)
                    ON CONFLICT DO NOTHING;
                IF NOT FOUND THEN
                    SELECT gone INTO a_gone FROM filter WHERE name = a_name FOR UPDATE;
                END IF;
            END IF;
            IF a_gone AND a_name = ANY (names) THEN
                UPDATE filter SET gone = false, node = p_node, grp = p_grp WHERE name = a_name;
            END IF;
        END LOOP;
    END IF;
    IF p_subscribes <> '{{}}' THEN
        -- step: subscriptions
        INSERT INTO subscription
            SELECT s.session, f.id, s.qos, s.no_local, s.retain_as_published, s.retain_handling, s.identifier
                FROM unnest(p_subscribes) s JOIN filter f ON f.name = s.filter WHERE s.qos IS NOT NULL
            ON CONFLICT (session, filter) DO UPDATE
                SET qos = excluded.qos, no_local = excluded.no_local,
                    retain_as_published = excluded.retain_as_published, retain_handling = excluded.retain_handling,
                    identifier = excluded.identifier;
        DELETE FROM subscription d USING unnest(p_subscribes) s JOIN filter f ON f.name = s.filter
            WHERE s.qos IS NULL AND d.session = s.session AND d.filter = f.id;
        FOR a_name IN SELECT n FROM unnest(names) n WHERE n ~ {OF_GROUP} ORDER BY n COLLATE "C" LOOP
            CONTINUE WHEN (SELECT share FROM filter WHERE name = a_name) IS NOT NULL;
            a_share := nextval('session_id');
            INSERT INTO session VALUES (a_share, a_name, NULL, 0, 0, '{{}}', {NEVER}, NULL);
            UPDATE filter SET share = a_share WHERE name = a_name;
            INSERT INTO subscription
                SELECT a_share, id, 2, false, true, 0, 0 FROM filter WHERE name = substring(a_name FROM {OF_GROUP});
        END LOOP;
    END IF;
    IF p_ends <> '{{}}' THEN
        -- step: ends
        unused := ARRAY(
            SELECT id FROM filter f WHERE name = ANY (p_ends) AND NOT gone
                AND NOT EXISTS (SELECT FROM subscription s WHERE s.filter = f.id)
        );
        INSERT INTO garbage SELECT share FROM filter WHERE id = ANY (unused) AND share IS NOT NULL;
        DELETE FROM session WHERE id IN (SELECT share FROM filter WHERE id = ANY (unused));
        UPDATE filter SET gone = true, node = p_node, grp = p_grp, share = NULL WHERE id = ANY (unused);
    END IF;

    counts := ARRAY(
        SELECT counted AND filters <> '{{}}' FROM unnest(p_publishes, written) AS p ({COLUMNS}, counted)
    );
    IF true = ANY (counts) THEN
        -- step: slot
        SELECT current INTO chosen FROM slots;
        -- step: messages
        numbers := ARRAY(SELECT CASE WHEN counted THEN nextval('message_id') END FROM unnest(counts) AS c (counted));
        last := (SELECT max(n) FROM unnest(numbers) n);
        INSERT INTO message
            SELECT chosen, id, topic, payload, qos, retain, properties, publisher,
                    clock_timestamp() + expiry * interval '1 second'
                FROM unnest(p_publishes, numbers) AS p ({COLUMNS}, id) WHERE id IS NOT NULL;
        -- step: deliveries
        WITH target AS (
            SELECT s.session, p.id, least(max(s.qos), p.qos) AS qos,
                    p.retain AND bool_or(s.retain_as_published) AS retain,
                    array_agg(s.identifier ORDER BY s.identifier) FILTER (WHERE s.identifier > 0) AS identifiers
                FROM unnest(p_publishes, numbers) AS p ({COLUMNS}, id)
                CROSS JOIN LATERAL unnest(p.filters) AS f (id)
                CROSS JOIN LATERAL (SELECT * FROM subscription WHERE filter = f.id OFFSET 0) s
                WHERE p.id IS NOT NULL
                    AND NOT (s.no_local AND s.session IS NOT DISTINCT FROM coalesce(p.session, (p.will).session))
                    AND EXISTS (SELECT FROM session WHERE id = s.session)
                GROUP BY s.session, p.id, p.qos, p.retain
                HAVING max(s.qos) > 0  -- QoS 0 is live traffic, and not kept
        ), fresh AS (
            INSERT INTO delivery
                SELECT chosen, session, 0, id, qos, 0, 0, retain, identifiers FROM target
                RETURNING session, source, id
        )
        SELECT coalesce(array_agg((session, messages, last)::hint), '{{}}') INTO said.hints
            FROM (SELECT session, count(*) AS messages, max(id) AS last FROM fresh GROUP BY session) each;
    END IF;

    todo := p_changes;
    FOREACH chosen IN ARRAY ARRAY[0, {LONG}]::smallint[] LOOP
        -- First where they were read; then in the slot {LONG} what was not there, since it has been moved.
        here := CASE chosen WHEN {LONG} THEN todo
            ELSE ARRAY(SELECT c::change FROM unnest(todo) c WHERE slot <> {LONG}) END;
        CONTINUE WHEN here = '{{}}';
        IF chosen = {LONG} THEN
            here := ARRAY(
                SELECT (session, epoch, source, id, {LONG}, state, packet_id)::change FROM unnest(todo)
            );
        END IF;
        -- Where all are acknowledged, the statement that deletes them locks them in the same order.
        moves := EXISTS (SELECT FROM unnest(here) WHERE state < 3);
        IF moves THEN
            IF chosen = {LONG} THEN
                -- step: long
            ELSE
                -- step: rows
            END IF;
            PERFORM FROM delivery d JOIN unnest(here) c USING (session, source, id, slot)
                ORDER BY d.session, d.source, d.id, d.slot FOR UPDATE OF d;
        END IF;
        IF chosen = {LONG} THEN
            -- step: long changed
        ELSE
            -- step: changed
        END IF;
        WITH acknowledged AS (
            DELETE FROM delivery d
                USING (SELECT * FROM unnest(here) WHERE state = 3 ORDER BY session, source, id, slot) c
                WHERE d.session = c.session AND d.source = c.source AND d.id = c.id AND d.slot = c.slot
                RETURNING d.session, d.source, d.id
        )
        SELECT array_agg((session, source, id)::delivery_key) INTO hit FROM acknowledged;
        IF moves THEN
            WITH moved_on AS (
                UPDATE delivery d
                    SET state = c.state, packet_id = CASE c.state WHEN 1 THEN c.packet_id ELSE d.packet_id END
                    FROM unnest(here) c
                    WHERE d.session = c.session AND d.source = c.source AND d.id = c.id AND d.slot = c.slot
                        AND c.state IN (1, 2) AND d.state = c.state - 1
                    RETURNING d.session, d.source, d.id
            )
            SELECT hit || array_agg((session, source, id)::delivery_key) INTO hit FROM moved_on;
        END IF;
        IF cardinality(hit) = cardinality(todo) THEN
            todo := '{{}}';
        ELSIF hit IS NOT NULL THEN
            todo := ARRAY(
                SELECT c::change FROM unnest(todo) c
                    WHERE (session, source, id) NOT IN (SELECT session, source, id FROM unnest(hit))
            );
        END IF;
    END LOOP;
    said.failed := said.failed || ARRAY(SELECT (session, source, id)::delivery_key FROM unnest(todo) WHERE state = 1);

    IF p_releases <> '{{}}' THEN
        -- step: release
        UPDATE session s SET expiry = r.expiry
            FROM unnest(p_releases) r WHERE s.id = r.session AND r.expiry IS NOT NULL;
        given := let_go(ARRAY(SELECT session FROM unnest(p_releases)));
    END IF;
    IF p_reap > 0 THEN
        -- step: reap
        reaped := ARRAY(
            SELECT orphan.id FROM node n CROSS JOIN LATERAL (
                    SELECT incarnation, id FROM session
                        WHERE node = n.id AND incarnation < n.incarnation + (NOT n.alive)::integer
                        ORDER BY incarnation, id LIMIT p_reap FOR UPDATE SKIP LOCKED
                ) orphan
                ORDER BY n.id, orphan.incarnation, orphan.id LIMIT p_reap
        );
        IF reaped <> '{{}}' THEN
            -- step: reaped
            given := given || let_go(reaped);
        END IF;
        -- step: orphans
        -- Their delay begins now: nobody knows better when their connections ended.
        wills := ARRAY(
            SELECT (orphan.session, orphan.epoch)::owner FROM node n CROSS JOIN LATERAL (
                    SELECT incarnation, session, epoch FROM will
                        WHERE node = n.id AND incarnation < n.incarnation + (NOT n.alive)::integer
                        ORDER BY incarnation, session, epoch LIMIT p_reap FOR UPDATE SKIP LOCKED
                ) orphan
                ORDER BY n.id, orphan.incarnation, orphan.session, orphan.epoch LIMIT p_reap
        );
        UPDATE will w SET due = coalesce(w.due, clock_timestamp() + w.delay * interval '1 second'), node = p_node,
                incarnation = p_incarnation
            FROM unnest(wills) o WHERE w.session = o.session AND w.epoch = o.epoch;
    END IF;

    IF given <> '{{}}' THEN
        said.hints := said.hints
            || ARRAY(SELECT (session, count(*), max(id))::hint FROM unnest(given) GROUP BY session);
    END IF;

    IF EXISTS (
        SELECT FROM unnest(p_publishes, written) AS p ({COLUMNS}, counted) WHERE counted AND retained IS NOT NULL
    ) THEN
        -- step: retained
        -- Of several of a topic the last one, but none that gives way before one that comes.
        FOR kept IN SELECT DISTINCT ON (topic COLLATE "C") {COLUMNS}
                FROM unnest(p_publishes, written) WITH ORDINALITY AS p ({COLUMNS}, counted, place)
                WHERE counted AND retained IS NOT NULL
                ORDER BY topic COLLATE "C", replaces IS NULL DESC, place DESC LOOP
            IF kept.retained THEN
                INSERT INTO retained
                    VALUES (
                        kept.topic, kept.payload, kept.qos, kept.properties, kept.publisher, kept.account,
                        clock_timestamp() + kept.expiry * interval '1 second', nextval('retained_version'), p_node,
                        p_grp
                    )
                    ON CONFLICT (topic) DO UPDATE
                        SET payload = excluded.payload, qos = excluded.qos, properties = excluded.properties,
                            publisher = excluded.publisher, account = excluded.account,
                            expires_at = excluded.expires_at, version = nextval('retained_version'),
                            node = p_node, grp = p_grp;
            ELSE
                UPDATE retained r
                    SET payload = NULL, properties = NULL, expires_at = clock_timestamp() + interval '{CLEARED}',
                        version = nextval('retained_version'), node = p_node, grp = p_grp
                    WHERE r.topic = kept.topic AND r.payload IS NOT NULL
                        AND (kept.replaces IS NULL OR r.version = kept.replaces);
            END IF;
        END LOOP;
    END IF;

    -- step: progress
    INSERT INTO progress VALUES (p_node, p_grp, p_incarnation, last, said.lost, said.failed);
    -- step: commit
    RETURN said;
END $$;
"""

LET_GO: Final = f"""
CREATE FUNCTION give_back(p_sessions bigint[]) RETURNS delivery_key[]
LANGUAGE plpgsql {PLANS} AS $$
-- Return to its share group what came to sessions that are locked through it, and was not sent, or is of QoS 1, as it
-- was before a member took it. What is being moved meanwhile is found by the next turn.
#variable_conflict use_column
DECLARE
    hints delivery_key[] := '{{}}';
    before integer;
BEGIN
    WHILE EXISTS (
        SELECT FROM delivery d WHERE session = ANY (p_sessions) AND source > 0 AND (qos = 1 OR state = 0)
            AND EXISTS (SELECT FROM session WHERE id = d.source)
    ) LOOP
        before := cardinality(hints);
        WITH theirs AS (
            SELECT d.session, d.source, d.id, d.slot FROM delivery d
                WHERE session = ANY (p_sessions) AND source > 0 AND (qos = 1 OR state = 0)
                    AND EXISTS (SELECT FROM session WHERE id = d.source)
                ORDER BY d.session, d.source, d.id, d.slot FOR UPDATE OF d
        ), given AS (
            UPDATE delivery d
                SET session = t.source, source = 0, qos = m.qos, state = 0, packet_id = 0, retain = m.retain,
                    identifiers = NULL
                FROM theirs t JOIN message m ON m.id = t.id AND m.slot = t.slot
                WHERE d.session = t.session AND d.source = t.source AND d.id = t.id AND d.slot = t.slot
                RETURNING d.session, d.source, d.id
        )
        SELECT hints || coalesce(array_agg((session, source, id)::delivery_key), '{{}}') INTO hints FROM given;
        CONTINUE WHEN cardinality(hints) = before;
        -- step: give back
    END LOOP;
    RETURN hints;
END $$;

CREATE FUNCTION let_go(p_sessions bigint[]) RETURNS delivery_key[]
LANGUAGE plpgsql {PLANS} AS $$
-- Sessions that are locked have no node any more, and begin to expire.
BEGIN
    UPDATE session SET node = NULL,
            expires_at = CASE WHEN expiry = {NEVER} THEN 'infinity'
                ELSE clock_timestamp() + expiry * interval '1 second' END
        WHERE id = ANY (p_sessions);
    RETURN give_back(p_sessions);
END $$;
"""

CLAIM: Final = f"""
CREATE FUNCTION claim_1(
    p_node smallint, p_incarnation integer, p_client_id text, p_clean boolean, p_expiry bigint, p_principal text,
    p_any_user boolean,                    -- the session may be another user's
    p_account text DEFAULT ''
) RETURNS claimed
LANGUAGE plpgsql {PLANS} AS $$
-- A CONNECT: the session is this node's, and no other's. NULL: this incarnation is over; an epoch alone: the session is
-- another user's, and stays as it is. What the session has is read afterwards (content_1).
#variable_conflict use_column
DECLARE
    said claimed;
    owner json;
    ended boolean;
    lasts boolean;                         -- longer than its connection
BEGIN
    PERFORM FROM node WHERE id = p_node AND incarnation = p_incarnation AND alive FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    said.hints := '{{}}';
    LOOP
        -- step: find
        SELECT id INTO said.session FROM session WHERE client_id = p_client_id FOR UPDATE;
        EXIT WHEN FOUND;
        -- step: make
        said.session := nextval('session_id');
        -- step: insert
        INSERT INTO session
            VALUES (said.session, p_client_id, p_node, p_incarnation, 1, p_principal, p_expiry, NULL, p_account)
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            said.epoch := 1;
            said.present := false;
            -- step: commit
            RETURN said;
        END IF;
    END LOOP;
    -- step: own
    SELECT coalesce(expires_at <= clock_timestamp(), false), expiry > 0, epoch, principal::json
        INTO ended, lasts, said.epoch, owner FROM session WHERE id = said.session;
    IF NOT (p_any_user OR ended) AND owner ->> 'user_name' IS DISTINCT FROM p_principal::json ->> 'user_name' THEN
        said.session := NULL;
        RETURN said;
    END IF;
    -- A session whose time is over has ended, swept or not, and one that does not last ends now, with its connection.
    -- One of another mount has no topics for this client.
    p_clean := p_clean OR ended OR NOT lasts OR owner ->> 'mount' IS DISTINCT FROM p_principal::json ->> 'mount';
    IF EXISTS (SELECT FROM will WHERE session = said.session) THEN
        -- step: wills
        IF p_clean THEN
            -- Their session has ended: nothing is waited for any more.
            UPDATE will SET delay = 0, due = CASE WHEN due IS NOT NULL THEN least(due, clock_timestamp()) END
                WHERE session = said.session;
        ELSE
            -- Its client is back in time.
            DELETE FROM will
                WHERE session = said.session AND delay > 0 AND coalesce(due > clock_timestamp(), true);
        END IF;
    END IF;
    IF p_clean THEN
        said.hints := give_back(ARRAY[said.session]);
        -- Another id: whoever writes for the old one, having looked before, writes for nobody.
        INSERT INTO garbage VALUES (said.session);
        said.session := nextval('session_id');
    END IF;
    UPDATE session
        SET id = said.session, node = p_node, incarnation = p_incarnation, epoch = epoch + 1, principal = p_principal,
            expiry = p_expiry, expires_at = NULL, account = p_account,
            filters = CASE WHEN p_clean THEN 0 ELSE filters END
        WHERE client_id = p_client_id RETURNING epoch INTO said.epoch;
    said.present := NOT p_clean;
    -- step: commit
    RETURN said;
END $$;
"""

CLAIM_FREE: Final = """
CREATE FUNCTION claim_free_1(
    p_node smallint, p_incarnation integer, p_client_ids text[], p_expiry bigint[], p_principals text[],
    p_any_user boolean, p_accounts text[]
) RETURNS TABLE (o_client_id text, o_claimed claimed)
LANGUAGE plpgsql AS $$
-- Claim many sessions at once, but for those that do not exist, and those that somebody has locked: these are left out,
-- since it waits for nobody while it holds the others. None with a clean start: that locks deliveries,
-- which others lock after the wills that the next claim locks.
DECLARE
    free text[];
BEGIN
    PERFORM FROM node WHERE id = p_node AND incarnation = p_incarnation AND alive FOR KEY SHARE;
    -- step: free
    free := ARRAY(
        SELECT client_id FROM session WHERE client_id = ANY (p_client_ids) ORDER BY id FOR UPDATE SKIP LOCKED
    );
    RETURN QUERY
        SELECT client_id, claim_1(p_node, p_incarnation, client_id, false, expiry, principal, p_any_user, account)
            FROM unnest(free) WITH ORDINALITY f (client_id, place)
            JOIN unnest(p_client_ids, p_expiry, p_principals, p_accounts)
                AS c (client_id, expiry, principal, account) USING (client_id)
            ORDER BY place;
END $$;
"""

CONTENT: Final = f"""
CREATE FUNCTION content_1(
    p_session bigint,
    OUT o_epoch bigint, OUT o_subscriptions subscribe[], OUT o_received integer[], OUT o_flying waiting[]
)
LANGUAGE plpgsql {PLANS} AS $$
-- What a claimed session has, but for what is queued. Only its owner changes it; o_epoch says who that is by now.
BEGIN
    SELECT (SELECT epoch FROM session WHERE id = p_session),
            ARRAY(
                SELECT (
                        p_session, NULL, f.name, qos, no_local, retain_as_published, retain_handling, identifier
                    )::subscribe
                    FROM subscription s JOIN filter f ON f.id = s.filter WHERE s.session = p_session
            ),
            ARRAY(SELECT packet_id FROM received WHERE session = p_session),
            ARRAY(
                SELECT row_waiting(d, m) FROM delivery d JOIN message m USING (id, slot)
                    WHERE d.session = p_session AND d.state > 0 ORDER BY d.id
            )
        INTO o_epoch, o_subscriptions, o_received, o_flying;
END $$;
"""

ROW_WAITING: Final = """
CREATE FUNCTION row_waiting(d delivery, m message) RETURNS waiting
LANGUAGE sql STABLE AS $$
    SELECT (d.slot, d.source, d.id, d.qos, d.state, d.packet_id, d.retain, d.identifiers, m.topic, m.payload,
        m.properties, m.publisher, ceil(extract(epoch FROM m.expires_at - clock_timestamp())))::waiting
$$;
"""

GONE: Final = 100_000
"""Groups of a node after which a filter that is gone is forgotten: each node has heard of it by then."""

READ: Final = f"""
CREATE FUNCTION read_1(p_sessions bigint[], p_low bigint[], p_room integer[], p_known delivery_key[])
RETURNS TABLE (
    o_session bigint, o_epoch bigint, o_final bigint, o_taken boolean, o_slot smallint, o_source bigint, o_id bigint,
    o_qos smallint, o_state smallint, o_packet_id integer, o_retain boolean, o_identifiers bigint[], o_topic text,
    o_payload bytea, o_properties bytea, o_publisher text, o_expiry bigint
)
LANGUAGE plpgsql {PLANS} SET enable_sort = off AS $$
-- What waits for sessions and is not known, without locks. First what came through share groups, however old; then what
-- is above p_low: p_room of each session, and of them {PAGE_BYTES} bytes and the message that passes these. o_taken:
-- false: there is more of that than this; NULL: nothing waits. No message up to o_final can appear any more.
-- In plpgsql, and not STABLE: a statement has its snapshot once it has its locks. With that of the call it would miss
-- what was moved before a slot was truncated.
BEGIN
    RETURN QUERY
        SELECT a.session, s.epoch, f.final, w.taken, w.slot, w.source, w.id, w.qos, w.state, w.packet_id, w.retain,
                w.identifiers, w.topic, CASE WHEN w.taken THEN w.payload END, w.properties, w.publisher,
                ceil(extract(epoch FROM w.expires_at - clock_timestamp()))::bigint
            FROM unnest(p_sessions, p_low, p_room) a (session, low, room)
            LEFT JOIN session s ON s.id = a.session
            CROSS JOIN (
                SELECT coalesce(min(p.last_id), 0) AS final FROM node n
                    CROSS JOIN LATERAL (SELECT last_id FROM progress WHERE node = n.id ORDER BY grp DESC LIMIT 1) p
                    WHERE n.alive
            ) f
            LEFT JOIN LATERAL (
                SELECT d.slot, d.source, d.id, d.qos, d.state, d.packet_id, d.retain, d.identifiers, m.topic,
                        m.payload, m.properties, m.publisher, m.expires_at,
                        d.source > 0 OR count(*) FILTER (WHERE d.source = 0) OVER in_order <= a.room AND coalesce(
                            sum(octet_length(m.payload)) FILTER (WHERE d.source = 0) OVER (
                                in_order ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                            ), 0
                        ) < {PAGE_BYTES} AS taken
                    FROM (
                        SELECT * FROM delivery WHERE session = a.session AND source > 0
                                AND (session, source, id) NOT IN (SELECT session, source, id FROM unnest(p_known))
                        UNION ALL (
                            SELECT * FROM delivery WHERE session = a.session AND source = 0 AND id > a.low
                                    AND (session, source, id) NOT IN (SELECT session, source, id FROM unnest(p_known))
                                ORDER BY id LIMIT a.room + 1
                        )
                    ) d
                    CROSS JOIN LATERAL (SELECT * FROM message WHERE id = d.id AND slot = d.slot OFFSET 0) m
                    WINDOW in_order AS (ORDER BY d.source = 0, d.id, d.slot, d.source)
            ) w ON true;
END $$;
"""

PULL: Final = f"""
CREATE FUNCTION pull_1(
    p_node smallint, p_incarnation integer, p_filter integer, p_members member[],
    OUT o_taken bigint[], OUT o_full boolean, OUT o_left boolean, OUT o_refused bigint[]
)
LANGUAGE plpgsql {PLANS} AS $$
-- Move messages from the queue of a share group to its members at a node, the oldest first, to each member in turn.
-- From then on they are deliveries of the member's session. o_taken: who got some; o_full: there was room for no more;
-- o_refused: who is not the node's, or no member.
#variable_conflict use_column
DECLARE
    queue bigint;
    places bigint[];                       -- of each message that may be taken, the session that gets it
    keys change[];
BEGIN
    PERFORM FROM session WHERE id = ANY (ARRAY(SELECT session FROM unnest(p_members))) ORDER BY id FOR SHARE;
    -- step: members
    SELECT share INTO queue FROM filter WHERE id = p_filter;
    places := ARRAY(
        SELECT m.session FROM unnest(p_members) WITH ORDINALITY AS m (session, epoch, room, turn)
            JOIN session s ON s.id = m.session AND s.epoch = m.epoch AND s.node = p_node
                AND s.incarnation = p_incarnation
            JOIN subscription b ON b.session = m.session AND b.filter = p_filter
            CROSS JOIN LATERAL generate_series(1, m.room) AS number
            ORDER BY number, m.turn
    );
    o_refused := ARRAY(SELECT session FROM unnest(p_members) WHERE session <> ALL (places));
    -- step: rows
    keys := ARRAY(
        SELECT (session, NULL, source, id, slot, 0, 0)::change FROM delivery WHERE session = queue AND source = 0
            ORDER BY id LIMIT cardinality(places) FOR UPDATE SKIP LOCKED
    );
    UPDATE delivery d
        SET session = b.session, source = queue, qos = least(d.qos, b.qos), retain = d.retain AND b.retain_as_published,
            identifiers = CASE WHEN b.identifier > 0 THEN ARRAY[b.identifier] END
        FROM unnest(keys) WITH ORDINALITY AS k (session, epoch, source, id, slot, state, packet_id, place)
        JOIN subscription b ON b.session = places[k.place] AND b.filter = p_filter
        WHERE d.session = k.session AND d.source = 0 AND d.id = k.id AND d.slot = k.slot;
    o_taken := ARRAY(SELECT DISTINCT places[place] FROM generate_series(1, cardinality(keys)) AS place);
    o_full := places <> '{{}}' AND cardinality(keys) = cardinality(places);
    -- step: left
    -- What was skipped may stay, since its holder moves it, or gives up.
    o_left := EXISTS (SELECT FROM delivery WHERE session = queue);
    -- step: commit
END $$;
"""

EXPIRE: Final = f"""
CREATE FUNCTION expire_1(p_limit integer) RETURNS integer
LANGUAGE plpgsql {PLANS} AS $$
-- End sessions whose time is over, and return how many. A claim that waits finds no row, and makes another.
DECLARE
    by_now timestamptz := clock_timestamp();  -- no index is asked for what a volatile function says
    ended bigint[];
BEGIN
    ended := ARRAY(
        SELECT id FROM session WHERE expires_at <= by_now ORDER BY expires_at, id LIMIT p_limit
            FOR UPDATE SKIP LOCKED
    );
    IF ended <> '{{}}' THEN
        -- step: expired
        INSERT INTO garbage SELECT unnest(ended);
        DELETE FROM session WHERE id = ANY (ended);
    END IF;
    -- step: commit
    RETURN cardinality(ended);
END $$;
"""

COLLECT: Final = f"""
CREATE FUNCTION collect_1(p_limit integer) RETURNS boolean
LANGUAGE plpgsql {PLANS} AS $$
-- Delete what is left of a session that has ended, p_limit deliveries at most. False: there is none.
#variable_conflict use_column
DECLARE
    ended bigint;
    rows change[];
BEGIN
    SELECT session INTO ended FROM garbage ORDER BY session LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        -- step: subscriptions
        DELETE FROM subscription WHERE session = ended;
        DELETE FROM received WHERE session = ended;
        -- step: rows
        rows := ARRAY(
            SELECT (session, NULL, source, id, slot, 3, 0)::change FROM delivery WHERE session = ended
                ORDER BY slot, source, id LIMIT p_limit FOR UPDATE SKIP LOCKED
        );
        -- step: collected
        DELETE FROM delivery d USING unnest(rows) c
            WHERE d.session = c.session AND d.source = c.source AND d.id = c.id AND d.slot = c.slot;
        -- step: garbage
        DELETE FROM garbage WHERE session = ended AND NOT EXISTS (SELECT FROM delivery WHERE session = ended);
    END IF;
    -- step: commit
    RETURN ended IS NOT NULL;
END $$;
"""

BOUND: Final = f"""
CREATE FUNCTION bound_1(
    p_session bigint, p_messages bigint, p_bytes bigint,  -- 0: no limit
    p_limit integer, OUT o_dropped integer, OUT o_messages boolean
)
LANGUAGE plpgsql {PLANS} AS $$
-- Delete the oldest of what is queued for a session beyond p_messages and p_bytes, p_limit at most: how many, and
-- whether there were too many messages, and not only bytes. The newest one stays, however large it is.
#variable_conflict use_column
DECLARE
    newest bigint;                         -- of those that go
    rows change[];
BEGIN
    o_dropped := 0;
    SELECT id, p_messages > 0 AND place > p_messages INTO newest, o_messages
        FROM (
            SELECT page.id, row_number() OVER newest_first AS place, sum(its.size) OVER newest_first AS bytes
                FROM (
                    SELECT id, slot FROM delivery WHERE session = p_session AND source = 0 AND state = 0
                        ORDER BY id DESC LIMIT nullif(p_messages, 0) + 1
                ) page
                CROSS JOIN LATERAL (
                    SELECT octet_length(topic) + octet_length(payload) + coalesce(octet_length(properties), 0) AS size
                        FROM message m WHERE m.id = page.id AND m.slot = page.slot OFFSET 0
                ) its
                WINDOW newest_first AS (ORDER BY page.id DESC)
        ) sized
        WHERE place > 1 AND (p_messages > 0 AND place > p_messages OR p_bytes > 0 AND bytes > p_bytes)
        ORDER BY place LIMIT 1;
    IF newest IS NOT NULL THEN
        -- step: rows
        rows := ARRAY(
            SELECT (session, NULL, source, id, slot, 3, 0)::change FROM delivery
                WHERE session = p_session AND source = 0 AND state = 0 AND id <= newest
                ORDER BY session, source, id LIMIT p_limit FOR UPDATE SKIP LOCKED
        );
        -- step: drop
        DELETE FROM delivery d USING unnest(rows) c
            WHERE d.session = c.session AND d.source = c.source AND d.id = c.id AND d.slot = c.slot;
        GET DIAGNOSTICS o_dropped = ROW_COUNT;
    END IF;
    -- step: commit
END $$;
"""

FORGET: Final = f"""
CREATE FUNCTION forget_1(p_limit integer) RETURNS integer
LANGUAGE plpgsql AS $$
-- Delete what waits in the slot {LONG} and has expired, and filters that have been gone for {GONE} groups of their
-- node, p_limit of each at most. Return how many. A node that has not heard that a filter is gone has it until its name
-- comes again, or the node begins anew.
DECLARE
    expired integer;
    ended integer;
BEGIN
    -- step: expired
    DELETE FROM delivery d USING (
        SELECT d.session, d.source, d.id FROM delivery d JOIN message m ON m.id = d.id AND m.slot = {LONG}
            WHERE d.slot = {LONG} AND d.state = 0 AND m.expires_at <= clock_timestamp()
            LIMIT p_limit FOR UPDATE OF d SKIP LOCKED
    ) e WHERE d.slot = {LONG} AND d.session = e.session AND d.source = e.source AND d.id = e.id;
    GET DIAGNOSTICS expired = ROW_COUNT;
    -- step: filters
    DELETE FROM filter WHERE id IN (SELECT id FROM filter WHERE gone AND id = ANY (ARRAY(
        SELECT f.id FROM node n CROSS JOIN LATERAL (
            SELECT id, gone FROM filter
                WHERE node = n.id AND grp < (SELECT max(grp) FROM progress WHERE node = n.id) - {GONE}
        ) f WHERE f.gone LIMIT p_limit
    )) FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS ended = ROW_COUNT;
    -- step: commit
    RETURN greatest(expired, ended);
END $$;
"""

FORGET_RETAINED: Final = """
CREATE FUNCTION forget_retained_1(p_limit integer) RETURNS integer
LANGUAGE plpgsql AS $$
-- Delete retained messages that have expired, and topics of which every node has heard that they were cleared, p_limit
-- at most. Return how many. Each node has the times of expiry itself.
DECLARE
    by_now timestamptz := clock_timestamp();
    ended integer;
BEGIN
    -- step: expired
    DELETE FROM retained WHERE topic IN (
        SELECT topic FROM retained WHERE expires_at <= by_now ORDER BY expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED
    );
    GET DIAGNOSTICS ended = ROW_COUNT;
    -- step: commit
    RETURN ended;
END $$;
"""

SWEEPERS: Final = f"""
CREATE FUNCTION is_sweeper() RETURNS boolean
LANGUAGE sql AS $$
    -- One transaction at a time empties slots.
    SELECT pg_try_advisory_xact_lock(hashtextextended('canopy sweeper ' || current_schema(), 0))
$$;

CREATE FUNCTION trim_1() RETURNS void
LANGUAGE plpgsql AS $$
-- Forget the numbers of all groups but each node's last, which alone may be asked again.
BEGIN
    IF NOT is_sweeper() THEN
        RETURN;
    END IF;
    -- step: trim
    DELETE FROM progress p USING node n
        WHERE p.node = n.id AND p.grp < (SELECT max(grp) FROM progress WHERE node = n.id AND incarnation IS NOT NULL);
    -- step: commit
END $$;

CREATE FUNCTION change_slot_1(p_age integer) RETURNS void
LANGUAGE plpgsql AS $$
-- Have new rows written into the next slot, if it is empty, and the current one has been that for p_age seconds.
BEGIN
    IF NOT is_sweeper() THEN
        RETURN;
    END IF;
    -- step: slot
    UPDATE slots SET current = (current + 1) % {SLOTS}, changed = clock_timestamp()
        WHERE changed <= clock_timestamp() - p_age * interval '1 second'
            AND NOT EXISTS (SELECT FROM delivery d WHERE d.slot = (SELECT (current + 1) % {SLOTS} FROM slots))
            AND NOT EXISTS (SELECT FROM message m WHERE m.slot = (SELECT (current + 1) % {SLOTS} FROM slots));
    -- step: commit
END $$;

CREATE FUNCTION move_1(p_slot smallint, p_limit integer) RETURNS integer
LANGUAGE plpgsql {PLANS} AS $$
-- Move deliveries of an old slot to the slot {LONG}, p_limit at most, with their messages. Return how many; NULL:
-- another transaction is the sweeper.
#variable_conflict use_column
DECLARE
    keys delivery_key[];
BEGIN
    IF NOT is_sweeper() THEN
        RETURN NULL;
    END IF;
    -- step: rows
    IF p_slot = (SELECT current FROM slots) THEN
        RETURN 0;
    END IF;
    keys := ARRAY(
        SELECT (session, source, id)::delivery_key FROM delivery WHERE slot = p_slot
            ORDER BY session, source, id LIMIT p_limit FOR UPDATE SKIP LOCKED
    );
    IF keys <> '{{}}' THEN
        -- step: move
        INSERT INTO message
            SELECT {LONG}, id, topic, payload, qos, retain, properties, publisher, expires_at FROM message
                WHERE slot = p_slot
                    AND id = ANY (ARRAY(SELECT k.id FROM unnest(keys) k JOIN session s ON s.id = k.session))
            ON CONFLICT DO NOTHING;
        WITH moved AS (
            DELETE FROM delivery d USING unnest(keys) k
                WHERE d.session = k.session AND d.source = k.source AND d.id = k.id AND d.slot = p_slot
                RETURNING d.*
        )
        INSERT INTO delivery
            SELECT {LONG}, session, source, id, qos, state, packet_id, retain, identifiers FROM moved
                WHERE EXISTS (SELECT FROM session s WHERE s.id = moved.session);
    END IF;
    -- step: commit
    RETURN cardinality(keys);
END $$;

CREATE FUNCTION empty_deliveries_1(p_slot smallint) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
-- Move what is left of an old slot, and truncate it, under a lock that no writer and no reader passes. It waits for
-- them no longer than they can wait for it. Rows are moved by a statement that begins when the lock is there.
BEGIN
    IF NOT is_sweeper() THEN
        RETURN false;
    END IF;
    -- step: lock
    EXECUTE format('LOCK TABLE delivery_%s IN ACCESS EXCLUSIVE MODE', p_slot);
    -- step: move
    IF p_slot = (SELECT current FROM slots) THEN
        RETURN false;
    END IF;
    INSERT INTO message
        SELECT {LONG}, id, topic, payload, qos, retain, properties, publisher, expires_at FROM message
            WHERE slot = p_slot
                AND id IN (SELECT d.id FROM delivery d JOIN session s ON s.id = d.session WHERE d.slot = p_slot)
        ON CONFLICT DO NOTHING;
    INSERT INTO delivery
        SELECT {LONG}, session, source, d.id, qos, state, packet_id, retain, identifiers
            FROM delivery d JOIN session s ON s.id = d.session WHERE slot = p_slot;
    -- step: truncate
    EXECUTE format('TRUNCATE delivery_%s', p_slot);
    -- step: commit
    RETURN true;
END $$;

CREATE FUNCTION empty_messages_1(p_slot smallint) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
-- Truncate the messages of an old slot without deliveries. In a transaction of its own: writers lock the messages of a
-- slot first, and its deliveries second. Who had written a message here has committed when the lock is there, and its
-- deliveries are seen.
BEGIN
    IF NOT is_sweeper() THEN
        RETURN false;
    END IF;
    -- step: lock
    EXECUTE format('LOCK TABLE message_%s IN ACCESS EXCLUSIVE MODE', p_slot);
    -- step: look
    IF p_slot = (SELECT current FROM slots) OR EXISTS (SELECT FROM delivery WHERE slot = p_slot) THEN
        RETURN false;
    END IF;
    -- step: truncate
    EXECUTE format('TRUNCATE message_%s', p_slot);
    -- step: commit
    RETURN true;
END $$;

CREATE FUNCTION clean_long_1() RETURNS void
LANGUAGE plpgsql AS $$
-- Delete messages of the slot {LONG} that no delivery needs any more. Nothing is moved there meanwhile.
BEGIN
    IF NOT is_sweeper() THEN
        RETURN;
    END IF;
    -- step: clean
    DELETE FROM message m
        WHERE slot = {LONG} AND NOT EXISTS (SELECT FROM delivery d WHERE d.slot = {LONG} AND d.id = m.id);
    -- step: commit
END $$;
"""

COUNT: Final = f"""
CREATE FUNCTION count_filters() RETURNS trigger
LANGUAGE plpgsql {PLANS} AS $$
-- Count the bytes of subscriptions that have come or gone. Their session is locked by who changes them, or has ended.
BEGIN
    UPDATE session s SET filters = s.filters + by.bytes
        FROM (
            SELECT c.session,
                    sum({FILTER_BYTES} + octet_length(f.name)) * CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END AS bytes
                FROM changed c JOIN filter f ON f.id = c.filter GROUP BY c.session
        ) by WHERE s.id = by.session;
    RETURN NULL;
END $$;
CREATE TRIGGER came AFTER INSERT ON subscription REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_filters();
CREATE TRIGGER went AFTER DELETE ON subscription REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_filters();
"""

FUNCTIONS: Final = (
    COUNT, JOIN, BEAT, DECLARE_DEAD, LOOK, WILLS, FEED, RETAINED, LET_GO, WRITE, CLAIM, CLAIM_FREE, ROW_WAITING,
    CONTENT, READ, PULL, EXPIRE, COLLECT, BOUND, FORGET, FORGET_RETAINED, SWEEPERS,
)  # fmt: skip
"""In the order in which they are made."""
