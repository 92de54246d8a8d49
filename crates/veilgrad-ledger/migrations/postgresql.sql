-- The tables, functions and roles of a Veilgrad ledger on PostgreSQL 11 or later, version 2. Run it once in the ledger's
-- database, as a role that may create roles: psql DATABASE -v ON_ERROR_STOP=1 -f FILE.
--
--   veilgrad_read         reads and verifies
--   veilgrad_charge       also charges runs to budgets that exist
--   veilgrad_administer   also creates and lowers budgets, imports, and moves the ledger
--
-- Nobody has a right to write to a table. Rows are appended by one function that checks the role, the number and the hash. The
-- tables have no CHECK constraints: the server would parse them anew for every row.
BEGIN;

DO $$
DECLARE
    name text;
BEGIN
    IF current_setting('server_encoding') NOT IN ('UTF8', 'SQL_ASCII') THEN
        RAISE EXCEPTION 'a ledger needs a database with the encoding UTF8';
    END IF;
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

-- `authors` is a hash chain of its own, over who appended which rows: it is the same in all rows that were appended at once.
CREATE TABLE veilgrad.event (
    sequence bigint PRIMARY KEY,
    bytes bytea NOT NULL,
    hash bytea NOT NULL,
    role name NOT NULL,
    host text NOT NULL,
    authors bytea NOT NULL
);
-- `hash` and `authors` are those of the last row, `previous` is the hash before the rows that were appended last. `destination` is
-- where a moved ledger continues; `arrived`, whether it is complete there.
CREATE TABLE veilgrad.head (
    single boolean PRIMARY KEY,
    version integer NOT NULL,
    sequence bigint NOT NULL,
    hash bytea NOT NULL,
    previous bytea NOT NULL,
    authors bytea NOT NULL,
    moved boolean NOT NULL,
    destination text,
    arrived boolean NOT NULL
);
INSERT INTO veilgrad.head SELECT true, 2, 0, zero, zero, zero, false, NULL, false FROM decode(repeat('00', 32), 'hex') AS zero;
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
    number bigint := after;
    last_hash bytea;
    chained bytea;
    event bytea;
    body json;
    author text := format('%s %s %s %s %s', after, cardinality(added), octet_length(session_user::text), session_user, host);
    administers boolean := pg_has_role(session_user, 'veilgrad_administer', 'MEMBER');
    durable text := set_config('synchronous_commit', 'on', true);
BEGIN
    -- Without rows nobody could say who moved the chain of authors on.
    IF coalesce(cardinality(added), 0) = 0 THEN
        RAISE EXCEPTION 'there are no rows to append';
    END IF;
    IF length(host) > 255 THEN
        RAISE EXCEPTION 'the name of the host has more than 255 characters';
    END IF;
    -- Waits for others that append. If one did since the caller read, the head is another row now.
    UPDATE veilgrad.head SET sequence = after + cardinality(added), previous = hash, hash = ending,
            authors = sha256(authors || convert_to(author, 'UTF8'))
        WHERE single AND NOT moved AND sequence = after
        RETURNING previous, authors INTO last_hash, chained;
    IF NOT FOUND THEN
        IF (SELECT moved FROM veilgrad.head) THEN
            RAISE EXCEPTION 'the ledger was moved elsewhere' USING ERRCODE = 'object_not_in_prerequisite_state';
        END IF;
        RAISE EXCEPTION 'the head is not row %', after USING ERRCODE = 'serialization_failure';
    END IF;
    FOREACH event IN ARRAY added LOOP
        IF NOT administers AND substring(event FOR 14) <> convert_to('{"kind":"run",', 'UTF8') THEN
            RAISE EXCEPTION 'role % may charge runs, and is not in veilgrad_administer', session_user
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        -- Fails if the row is not JSON.
        body := convert_from(event, 'UTF8')::json;
        number := number + 1;
        last_hash := sha256(last_hash || event);
        INSERT INTO veilgrad.event VALUES (number, event, last_hash, session_user, host, chained);
    END LOOP;
    IF last_hash <> ending THEN
        RAISE EXCEPTION 'the rows do not end at their hash' USING ERRCODE = 'data_corrupted';
    END IF;
END
$$;

-- Ends all charges, because the ledger continues at `place` and nowhere else.
CREATE FUNCTION veilgrad.retire(place text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    durable text := set_config('synchronous_commit', 'on', true);
BEGIN
    UPDATE veilgrad.head SET moved = true, destination = place WHERE single AND NOT moved;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the ledger was moved elsewhere' USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END
$$;

-- The ledger that was moved is complete where it continues; it is not moved again.
CREATE FUNCTION veilgrad.arrive() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    durable text := set_config('synchronous_commit', 'on', true);
BEGIN
    UPDATE veilgrad.head SET arrived = true WHERE single AND moved;
END
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA veilgrad FROM PUBLIC;
GRANT EXECUTE ON FUNCTION veilgrad.lock_head(), veilgrad.append(bigint, bytea[], bytea, text) TO veilgrad_charge;
GRANT EXECUTE ON FUNCTION veilgrad.retire(text), veilgrad.arrive() TO veilgrad_administer;

COMMIT;
