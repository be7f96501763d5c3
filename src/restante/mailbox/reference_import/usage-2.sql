-- A usage database of the reference server, version 2 (magic-wormhole-mailbox-server 0.8.0, db-schemas/usage-v2.sql):
-- the same tables, columns and indexes, for programs that read it.
CREATE TABLE version (version INTEGER);
INSERT INTO version VALUES (2);
CREATE TABLE current (rebooted INTEGER, updated INTEGER, blur_time INTEGER, connections_websocket INTEGER);
CREATE TABLE nameplates (
    app_id VARCHAR, started INTEGER, waiting_time INTEGER, total_time INTEGER, result VARCHAR
);
CREATE TABLE mailboxes (
    app_id VARCHAR, for_nameplate BOOLEAN, started INTEGER, total_time INTEGER, waiting_time INTEGER, result VARCHAR
);
CREATE TABLE client_versions (
    app_id VARCHAR, side VARCHAR, connect_time INTEGER, implementation VARCHAR, version VARCHAR
);
CREATE INDEX nameplates_idx ON nameplates (app_id, started);
CREATE INDEX mailboxes_idx ON mailboxes (app_id, started);
CREATE INDEX mailboxes_result_idx ON mailboxes (result);
CREATE INDEX client_versions_time_idx ON client_versions (connect_time);
CREATE INDEX client_versions_appid_time_idx ON client_versions (app_id, connect_time);
