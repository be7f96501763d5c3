-- A usage database of the reference relay, version 1 (magic-wormhole-transit-relay 0.5.0, db-schemas/v1.sql): the same
-- tables, columns and indexes, for programs that read it.
CREATE TABLE version (version INTEGER);
INSERT INTO version VALUES (1);
CREATE TABLE current (
    rebooted INTEGER, updated INTEGER, connected INTEGER, waiting INTEGER, incomplete_bytes INTEGER
);
CREATE TABLE usage (
    started INTEGER, total_time INTEGER, waiting_time INTEGER, total_bytes INTEGER, result VARCHAR
);
CREATE INDEX usage_started_index ON usage (started);
CREATE INDEX usage_result_index ON usage (result);
