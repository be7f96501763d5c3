-- The mailbox server's data on PostgreSQL (14 or newer), schema 1. Columns are described in sqlite-0001.sql to
-- sqlite-0006.sql. All names are qualified, so that no session setting is needed.
--
-- A database gets this file once. So a change here, also of a function, reaches only new databases. The others need a
-- migration to another version, which `prepare` (postgres.py) cannot do yet. Run it in a term of its own: then servers
-- of the earlier version write no more.

CREATE TABLE restante.schema (
    version integer NOT NULL
);
INSERT INTO restante.schema VALUES (1);

-- One row: which server may write. A server has a new term each time that it takes over. It writes only while the row
-- has its term.
CREATE TABLE restante.lease (
    one      integer PRIMARY KEY CHECK (one = 1),
    term     bigint NOT NULL,
    node     text NOT NULL,         -- the name of the server, for people
    renewals bigint NOT NULL,       -- rises while the server works
    released boolean NOT NULL,      -- true: the server has ended in order, and another may take over at once
    backend  integer NOT NULL,      -- the connection of the term: its process of PostgreSQL,
    started  timestamptz NOT NULL   -- and when this PostgreSQL was started
);
INSERT INTO restante.lease VALUES (1, 0, '', 0, true, 0, 'epoch');

CREATE TABLE restante.service (
    one     integer PRIMARY KEY CHECK (one = 1),
    seconds double precision NOT NULL,
    saved   double precision NOT NULL,
    pruned  double precision
);
INSERT INTO restante.service VALUES (1, 0, 0, NULL);

CREATE TABLE restante.mailboxes (
    key           bigint PRIMARY KEY,
    app_id        text NOT NULL,
    mailbox_id    text NOT NULL,
    for_nameplate integer NOT NULL,
    crowded       integer NOT NULL,
    touched       double precision NOT NULL,
    sides         text NOT NULL,
    visitors      integer NOT NULL
);

CREATE TABLE restante.nameplates (
    key        bigint PRIMARY KEY,
    app_id     text NOT NULL,
    name       text NOT NULL,
    mailbox_id text NOT NULL,
    crowded    integer NOT NULL,
    sides      text NOT NULL
);

CREATE TABLE restante.messages (
    mailbox   bigint NOT NULL,
    sequence  bigint PRIMARY KEY,
    side      text NOT NULL,
    phase     bytea NOT NULL,       -- JSON texts in UTF-8
    body      bytea NOT NULL,
    msg_id    bytea NOT NULL,
    server_rx double precision NOT NULL
);

CREATE TABLE restante.usage_nameplates (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    origin       text NOT NULL,
    app_id       text NOT NULL,
    started      double precision NOT NULL,
    waiting_time double precision,
    total_time   double precision NOT NULL,
    result       text NOT NULL,
    blur_time    double precision
);

CREATE TABLE restante.usage_mailboxes (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    origin        text NOT NULL,
    app_id        text NOT NULL,
    for_nameplate integer NOT NULL,
    started       double precision NOT NULL,
    waiting_time  double precision,
    total_time    double precision NOT NULL,
    result        text NOT NULL,
    visitors      integer,
    blur_time     double precision
);

CREATE TABLE restante.usage_client_versions (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    origin         text NOT NULL,
    app_id         text NOT NULL,
    side           text NOT NULL,
    connect_time   double precision NOT NULL,
    implementation text,
    version        text,
    address_id     text,
    blur_time      double precision
);

CREATE TABLE restante.usage_current (
    one                   integer PRIMARY KEY CHECK (one = 1),
    rebooted              double precision NOT NULL,
    updated               double precision NOT NULL,
    blur_time             double precision,
    connections_websocket integer NOT NULL
);

CREATE TABLE restante.imports (
    digest text COLLATE "C" PRIMARY KEY,
    kind   text NOT NULL,
    name   text NOT NULL,
    at     double precision NOT NULL
);

CREATE INDEX usage_nameplates_started ON restante.usage_nameplates (started);
CREATE INDEX usage_mailboxes_started ON restante.usage_mailboxes (started);
CREATE INDEX usage_client_versions_connect_time ON restante.usage_client_versions (connect_time);

-- Lock the lease until the transaction ends, or fail if the term is over, or that of another connection. A pooler may
-- give each transaction another one, and after a failover to a database that lacks what the server has stored. A
-- take-over waits for this lock, so no transaction of an earlier term commits after it.
CREATE FUNCTION restante.fence(caller bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM restante.lease
        WHERE term = caller AND backend = pg_backend_pid() AND started = pg_postmaster_start_time() FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'RS001', MESSAGE = CASE
            WHEN EXISTS (SELECT FROM restante.lease WHERE term = caller)
            THEN 'this is not the connection that has begun the term: a pooler must have pool_mode = session'
            ELSE 'another server has taken over, or the lease is lost' END;
    END IF;
    -- Whatever the settings of the role and the database: who is answered has been stored.
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    -- Otherwise the warning that a COMMIT has not waited for the standby is not sent (`PostgresStore._on_notice`).
    IF current_setting('client_min_messages') = 'error' THEN
        PERFORM set_config('client_min_messages', 'warning', true);
    END IF;
END $$;

-- Take over if the lease has not changed. Return the new term, or NULL.
CREATE FUNCTION restante.take_over(old_term bigint, old_renewals bigint, new_node text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    new_term bigint;
BEGIN
    UPDATE restante.lease SET term = term + 1, node = new_node, renewals = 0, released = false,
            backend = pg_backend_pid(), started = pg_postmaster_start_time()
        WHERE term = old_term AND renewals = old_renewals
        RETURNING term INTO new_term;
    IF new_term IS NOT NULL THEN
        PERFORM restante.fence(new_term);
    END IF;
    RETURN new_term;
END $$;

CREATE FUNCTION restante.renew(caller bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM restante.fence(caller);  -- a renewal that a crash or a failover undoes would be trusted wrongly
    UPDATE restante.lease SET renewals = renewals + 1 WHERE term = caller;
END $$;

CREATE FUNCTION restante.release(caller bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE restante.lease SET released = true WHERE term = caller;
$$;

-- Apply one batch. NULL stands for an array without elements, and for a value that does not change.
CREATE FUNCTION restante.apply(
    caller bigint,
    new_mailboxes restante.mailboxes[],
    new_nameplates restante.nameplates[],
    new_messages restante.messages[],
    gone_mailboxes bigint[],
    gone_nameplates bigint[],
    gone_messages bigint[],
    new_service double precision,
    new_saved double precision,
    new_pruned double precision,
    new_current restante.usage_current,
    of_nameplates restante.usage_nameplates[],
    of_mailboxes restante.usage_mailboxes[],
    of_client_versions restante.usage_client_versions[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM restante.fence(caller);
    IF new_mailboxes IS NOT NULL THEN
        INSERT INTO restante.mailboxes SELECT * FROM unnest(new_mailboxes)
            ON CONFLICT (key) DO UPDATE SET
                crowded = excluded.crowded, touched = excluded.touched,
                sides = excluded.sides, visitors = excluded.visitors;
    END IF;
    IF new_nameplates IS NOT NULL THEN
        INSERT INTO restante.nameplates SELECT * FROM unnest(new_nameplates)
            ON CONFLICT (key) DO UPDATE SET crowded = excluded.crowded, sides = excluded.sides;
    END IF;
    IF new_messages IS NOT NULL THEN
        INSERT INTO restante.messages SELECT * FROM unnest(new_messages);
    END IF;
    IF gone_messages IS NOT NULL THEN
        DELETE FROM restante.messages WHERE sequence = ANY (gone_messages);
    END IF;
    IF gone_mailboxes IS NOT NULL THEN
        DELETE FROM restante.mailboxes WHERE key = ANY (gone_mailboxes);
    END IF;
    IF gone_nameplates IS NOT NULL THEN
        DELETE FROM restante.nameplates WHERE key = ANY (gone_nameplates);
    END IF;
    IF of_nameplates IS NOT NULL THEN
        INSERT INTO restante.usage_nameplates
            (origin, app_id, started, waiting_time, total_time, result, blur_time)
            SELECT origin, app_id, started, waiting_time, total_time, result, blur_time FROM unnest(of_nameplates);
    END IF;
    IF of_mailboxes IS NOT NULL THEN
        INSERT INTO restante.usage_mailboxes
            (origin, app_id, for_nameplate, started, waiting_time, total_time, result, visitors, blur_time)
            SELECT origin, app_id, for_nameplate, started, waiting_time, total_time, result, visitors, blur_time
            FROM unnest(of_mailboxes);
    END IF;
    IF of_client_versions IS NOT NULL THEN
        INSERT INTO restante.usage_client_versions
            (origin, app_id, side, connect_time, implementation, version, address_id, blur_time)
            SELECT origin, app_id, side, connect_time, implementation, version, address_id, blur_time
            FROM unnest(of_client_versions);
    END IF;
    IF new_current.one IS NOT NULL THEN
        INSERT INTO restante.usage_current SELECT new_current.*
            ON CONFLICT (one) DO UPDATE SET
                rebooted = excluded.rebooted, updated = excluded.updated, blur_time = excluded.blur_time,
                connections_websocket = excluded.connections_websocket;
    END IF;
    IF new_service IS NOT NULL THEN
        UPDATE restante.service SET seconds = new_service, saved = new_saved;
    END IF;
    IF new_pruned IS NOT NULL THEN
        UPDATE restante.service SET pruned = new_pruned;
    END IF;
END $$;

-- Delete usage records that are older than a wall time, up to a number of each kind. Return how many were deleted.
CREATE FUNCTION restante.forget_usage(caller bigint, before double precision, at_most integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    deleted integer;
    total integer := 0;
BEGIN
    PERFORM restante.fence(caller);
    DELETE FROM restante.usage_nameplates
        WHERE id IN (SELECT id FROM restante.usage_nameplates WHERE started < before LIMIT at_most);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    total := total + deleted;
    DELETE FROM restante.usage_mailboxes
        WHERE id IN (SELECT id FROM restante.usage_mailboxes WHERE started < before LIMIT at_most);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    total := total + deleted;
    DELETE FROM restante.usage_client_versions
        WHERE id IN (SELECT id FROM restante.usage_client_versions WHERE connect_time < before LIMIT at_most);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN total + deleted;
END $$;
