-- The tables, functions and roles of a Veilgrad ledger on PostgreSQL 11 or later, version 1. Run it once in the ledger's
-- database, as a role that may create roles: psql DATABASE -v ON_ERROR_STOP=1 -f FILE.
--
--   veilgrad_read         reads and verifies
--   veilgrad_charge       also charges runs to budgets that exist
--   veilgrad_administer   also creates and lowers budgets, imports, and moves the ledger
--
-- Nobody has a right to write to a table. Rows are appended by functions that check the role, the number and the hash.
BEGIN;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['veilgrad_read', 'veilgrad_charge', 'veilgrad_administer'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        END IF;
    END LOOP;
END
$$;
GRANT veilgrad_read TO veilgrad_charge;
GRANT veilgrad_charge TO veilgrad_administer;

CREATE SCHEMA veilgrad;
REVOKE ALL ON SCHEMA veilgrad FROM PUBLIC;
GRANT USAGE ON SCHEMA veilgrad TO veilgrad_read;

CREATE TABLE veilgrad.event (
    sequence bigint PRIMARY KEY CHECK (sequence > 0),
    bytes bytea NOT NULL,
    hash bytea NOT NULL CHECK (length(hash) = 32),
    role name NOT NULL,
    host text NOT NULL CHECK (length(host) <= 255)
);
CREATE TABLE veilgrad.head (
    single boolean PRIMARY KEY CHECK (single),
    version integer NOT NULL,
    sequence bigint NOT NULL,
    hash bytea NOT NULL CHECK (length(hash) = 32),
    moved boolean NOT NULL
);
INSERT INTO veilgrad.head VALUES (true, 1, 0, decode(repeat('00', 32), 'hex'), false);
REVOKE ALL ON veilgrad.event, veilgrad.head FROM PUBLIC;
GRANT SELECT ON veilgrad.event, veilgrad.head TO veilgrad_read;

CREATE FUNCTION veilgrad.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'events are never changed or deleted';
END
$$;
CREATE TRIGGER event_change BEFORE UPDATE OR DELETE ON veilgrad.event
    FOR EACH ROW EXECUTE FUNCTION veilgrad.refuse_change();
CREATE TRIGGER event_truncate BEFORE TRUNCATE ON veilgrad.event
    FOR EACH STATEMENT EXECUTE FUNCTION veilgrad.refuse_change();

-- Until the transaction ends, no other one appends.
CREATE FUNCTION veilgrad.lock_head(OUT sequence bigint, OUT hash bytea, OUT moved boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT head.sequence, head.hash, head.moved INTO sequence, hash, moved FROM veilgrad.head FOR UPDATE;
END
$$;

-- Appends rows after the row `after`; their chain must end at the hash `ending`. The kind of a row is its first key. The
-- commit waits for the disk, whatever the server and the client are set to.
CREATE FUNCTION veilgrad.append(after bigint, added bytea[], ending bytea, host text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last veilgrad.head;
    event bytea;
    administers boolean := pg_has_role(session_user, 'veilgrad_administer', 'MEMBER');
    durable text := set_config('synchronous_commit', 'on', true);
BEGIN
    SELECT * INTO last FROM veilgrad.head;
    -- Waits for others that append. If one did since the row was read, it has another number now.
    UPDATE veilgrad.head SET sequence = after + cardinality(added), hash = ending
        WHERE single AND NOT moved AND sequence = after AND hash = last.hash;
    IF NOT FOUND THEN
        SELECT * INTO last FROM veilgrad.head;
        IF last.moved THEN
            RAISE EXCEPTION 'the ledger was moved elsewhere' USING ERRCODE = 'object_not_in_prerequisite_state';
        END IF;
        RAISE EXCEPTION 'the head is row %, not row %', last.sequence, after USING ERRCODE = 'serialization_failure';
    END IF;
    FOREACH event IN ARRAY added LOOP
        IF NOT administers AND substring(event FOR 14) <> convert_to('{"kind":"run",', 'UTF8') THEN
            RAISE EXCEPTION 'role % may charge runs, and is not in veilgrad_administer', session_user
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        last.sequence := last.sequence + 1;
        last.hash := sha256(last.hash || event);
        INSERT INTO veilgrad.event VALUES (last.sequence, event, last.hash, session_user, host);
    END LOOP;
    IF last.hash <> ending THEN
        RAISE EXCEPTION 'the rows do not end at their hash' USING ERRCODE = 'data_corrupted';
    END IF;
END
$$;

-- Ends all charges, because the ledger continues elsewhere.
CREATE FUNCTION veilgrad.retire() RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE veilgrad.head SET moved = true WHERE single;
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA veilgrad FROM PUBLIC;
GRANT EXECUTE ON FUNCTION veilgrad.lock_head(), veilgrad.append(bigint, bytea[], bytea, text) TO veilgrad_charge;
GRANT EXECUTE ON FUNCTION veilgrad.retire() TO veilgrad_administer;

COMMIT;
