//! Ledgers on PostgreSQL, against a real server that the test starts.
#![cfg(feature = "postgres")]

mod common;
mod server;

use std::sync::Arc;

use common::{Directory, budget, charged, cost, header, planned, round};
use server::Server;
use veilgrad_accounting::Tightest;
use veilgrad_events::{Epsilon, LedgerError, Mode, Run};
use veilgrad_ledger::{DatasetLedger, Ledger, Location, Options, StoreError};

/// A server with a ledger whose budget covers exactly `rounds` rounds of a plan.
fn begin(name: &str, rounds: u64) -> Option<Server> {
    let server = Server::start(name, &[])?;
    let epsilon = 0.5 * (cost(rounds) + cost(rounds + 1));
    let mut ledger = Ledger::create(server.ledger("admin"), Options::default()).unwrap();
    ledger.create_budget(budget("data", epsilon, Mode::Planned)).unwrap();
    Some(server)
}

fn open(server: &Server, role: &str) -> Ledger {
    Ledger::open(server.ledger(role), Options::default()).unwrap()
}

fn read(server: &Server) -> Result<Ledger, StoreError> {
    Ledger::read(server.ledger("reader"), Options::default())
}

fn run(ledger: Ledger) -> Result<Run<DatasetLedger>, LedgerError> {
    Run::open(ledger.dataset("data", Arc::new(Tightest)).unwrap(), header())
}

/// The rows and hashes of a ledger.
fn rows(ledger: &Ledger) -> Vec<(u64, Vec<u8>, String)> {
    let mut rows = Vec::new();
    ledger
        .visit_rows(&mut |sequence, bytes, hash| {
            rows.push((sequence, bytes.to_vec(), hash.to_string()));
            Ok(())
        })
        .unwrap();
    rows
}

#[test]
fn charges_are_granted_within_the_budget_and_seen_by_others() {
    let Some(server) = begin("charges", 12) else { return };
    let mut first = planned(open(&server, "trainer"), 8).unwrap();
    // What the first plan holds is not granted to another.
    assert!(matches!(
        planned(open(&server, "trainer"), 5),
        Err(LedgerError::BudgetExhausted(why)) if why.contains("hold")
    ));
    let mut second = planned(open(&server, "trainer"), 4).unwrap();
    assert_eq!(read(&server).unwrap().holding("data").len(), 2);
    drop(first.reserve(&round(0.05, 1.0), 3).unwrap());
    drop(second.reserve(&round(0.05, 1.0), 4).unwrap());
    drop(first.reserve(&round(0.05, 1.0), 5).unwrap());
    let first = first.close().unwrap().into_ledger();
    // Its hold ended with it, and its connection goes on.
    assert_eq!(first.holding("data").len(), 1);
    drop(second);
    assert_eq!(charged(&read(&server).unwrap()), 12);
    assert!(matches!(planned(first, 1), Err(LedgerError::BudgetExhausted(_))));
}

#[test]
fn roles_without_a_right_can_neither_charge_nor_change_a_budget() {
    let Some(server) = begin("roles", 400) else { return };
    let refused = |result: Result<(), StoreError>| match result {
        Err(StoreError::Refused(why)) => assert!(why.contains("right"), "{why}"),
        other => panic!("{other:?}"),
    };
    // A reader reads, and charges nothing.
    assert_eq!(charged(&read(&server).unwrap()), 0);
    let store = open(&server, "reader").dataset("data", Arc::new(Tightest)).unwrap();
    let error = Run::open(store, header()).err().unwrap().to_string();
    assert!(error.contains("right"), "{error}");
    // A stranger does not even read.
    refused(Ledger::read(server.ledger("stranger"), Options::default()).map(|_| ()));
    // A trainer charges, and neither creates nor lowers a budget, nor imports one.
    let mut trainer = open(&server, "trainer");
    refused(trainer.create_budget(budget("more", 9.0, Mode::Planned)));
    refused(trainer.tighten("data", Epsilon::new(0.1).unwrap()));
    let directory = Directory::new();
    let other = common::create(&directory.ledger(), 100.0).export().unwrap();
    refused(trainer.import(&other).map(|_| ()));
    // A refused row leaves the handle as it was.
    let mut run = run(trainer).unwrap();
    drop(run.reserve(&round(0.05, 1.0), 1).unwrap());
    // Nobody raises a budget.
    let raised = open(&server, "admin").tighten("data", Epsilon::new(50.0).unwrap());
    assert!(matches!(raised, Err(StoreError::Refused(why)) if why.contains("never raised")));
    // Nor with SQL.
    let budget = |epsilon: f64| budget("data", epsilon, Mode::Planned);
    let forged = veilgrad_ledger::Entry::Budget { budget: budget(99.0) }.to_bytes().unwrap();
    let forged: String = forged.iter().map(|byte| format!("{byte:02x}")).collect();
    let head = read(&server).unwrap().head().sequence;
    for (role, statement) in [
        (
            "trainer",
            format!("SELECT veilgrad.append({head}, ARRAY['\\x{forged}']::bytea[], '\\x00', 'h')"),
        ),
        // The chain of authors moves on with rows alone.
        (
            "trainer",
            "SELECT veilgrad.append(sequence, ARRAY[]::bytea[], hash, 'h') FROM veilgrad.head"
                .to_owned(),
        ),
        (
            "trainer",
            "SELECT veilgrad.append(sequence, NULL, hash, 'h') FROM veilgrad.head".to_owned(),
        ),
        ("reader", "SELECT veilgrad.lock_head()".to_owned()),
        ("trainer", "SELECT veilgrad.retire('x')".to_owned()),
        ("trainer", "UPDATE veilgrad.head SET sequence = 1".to_owned()),
        (
            "trainer",
            "INSERT INTO veilgrad.event VALUES (99, '\\x00', '\\x00', 'x', 'x')".to_owned(),
        ),
        ("admin", "DELETE FROM veilgrad.event".to_owned()),
        ("admin", "UPDATE veilgrad.event SET host = 'x'".to_owned()),
        ("owner", "DELETE FROM veilgrad.event".to_owned()),
        ("owner", "TRUNCATE veilgrad.event".to_owned()),
    ] {
        assert!(server.try_sql(role, "ledger", &statement).is_err(), "{role}: {statement}");
    }
    let ledger = read(&server).unwrap();
    ledger.audit().unwrap();
    let authors = ledger.authors().unwrap();
    assert_eq!(authors[&1].role, "admin");
    assert_eq!(authors[&ledger.head().sequence].role, "trainer");
    assert!(!authors[&1].host.is_empty());
}

#[test]
fn altered_rows_and_functions_are_noticed() {
    let Some(server) = begin("altered", 400) else { return };
    let mut run = run(open(&server, "trainer")).unwrap();
    drop(run.reserve(&round(0.05, 1.0), 2).unwrap());
    drop(run);
    server.sql("owner", "postgres", "CREATE DATABASE kept TEMPLATE ledger");
    let alter = |statements: &str| {
        let all = format!("SET session_replication_role = replica; {statements}");
        server.sql("owner", "ledger", &all);
        let found = read(&server).and_then(|ledger| ledger.audit());
        server.sql("owner", "postgres", "DROP DATABASE ledger");
        server.sql("owner", "postgres", "CREATE DATABASE ledger TEMPLATE kept");
        server.sql("owner", "postgres", "REVOKE stranger FROM veilgrad_charge");
        found
    };
    assert_eq!(alter("SELECT 1").unwrap(), Vec::<String>::new());
    let last = "(SELECT max(sequence) FROM veilgrad.event)";
    for statements in [
        format!("UPDATE veilgrad.event SET bytes = set_byte(bytes, 40, get_byte(bytes, 40) # 1) WHERE sequence = {last}"),
        format!("UPDATE veilgrad.event SET hash = sha256(hash) WHERE sequence = {last}"),
        format!("DELETE FROM veilgrad.event WHERE sequence = {last}"),
        "DELETE FROM veilgrad.event WHERE sequence = 2".to_owned(),
        "UPDATE veilgrad.event SET sequence = sequence + 100".to_owned(),
        "UPDATE veilgrad.head SET sequence = sequence - 1".to_owned(),
        "DELETE FROM veilgrad.head".to_owned(),
        "DROP TRIGGER event_change ON veilgrad.event".to_owned(),
        "ALTER TABLE veilgrad.event DISABLE TRIGGER event_truncate".to_owned(),
        "GRANT UPDATE ON veilgrad.head TO veilgrad_charge".to_owned(),
        "GRANT EXECUTE ON FUNCTION veilgrad.retire(text) TO PUBLIC".to_owned(),
        "CREATE OR REPLACE FUNCTION veilgrad.refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"
            .to_owned(),
        "GRANT UPDATE (hash) ON veilgrad.head TO veilgrad_charge".to_owned(),
        "GRANT SELECT ON veilgrad.head TO veilgrad_read WITH GRANT OPTION".to_owned(),
        "GRANT CREATE ON SCHEMA veilgrad TO veilgrad_charge".to_owned(),
        "GRANT stranger TO veilgrad_charge".to_owned(),
        "CREATE TRIGGER other BEFORE UPDATE ON veilgrad.head FOR EACH ROW EXECUTE FUNCTION \
         suppress_redundant_updates_trigger()"
            .to_owned(),
        "CREATE RULE other AS ON UPDATE TO veilgrad.head DO INSTEAD NOTHING".to_owned(),
        "ALTER TABLE veilgrad.event ENABLE ROW LEVEL SECURITY; CREATE POLICY all_rows ON veilgrad.event USING (true)"
            .to_owned(),
        "ALTER TABLE veilgrad.event SET UNLOGGED".to_owned(),
        "ALTER TABLE veilgrad.event ALTER host DROP NOT NULL".to_owned(),
        "ALTER TABLE veilgrad.head ALTER arrived SET DEFAULT true".to_owned(),
        "ALTER TABLE veilgrad.head ADD CHECK (sequence < 100)".to_owned(),
        "ALTER TABLE veilgrad.head DROP CONSTRAINT head_pkey; CREATE INDEX head_pkey ON veilgrad.head (single)".to_owned(),
        "ALTER TABLE veilgrad.event ADD note text; UPDATE veilgrad.event SET note = 'x'".to_owned(),
        "CREATE TABLE child () INHERITS (veilgrad.head)".to_owned(),
        "ALTER TABLE veilgrad.head OWNER TO stranger".to_owned(),
        "ALTER FUNCTION veilgrad.append(bigint, bytea[], bytea, text) OWNER TO stranger".to_owned(),
        "ALTER FUNCTION veilgrad.append(bigint, bytea[], bytea, text) SET search_path = public, pg_catalog"
            .to_owned(),
        "ALTER FUNCTION veilgrad.retire(text) SECURITY INVOKER".to_owned(),
        format!("UPDATE veilgrad.event SET role = 'admin' WHERE sequence = {last}"),
        "UPDATE veilgrad.event SET host = 'elsewhere' WHERE sequence = 1".to_owned(),
        "UPDATE veilgrad.event SET authors = sha256(authors) WHERE sequence = 2".to_owned(),
        "UPDATE veilgrad.head SET authors = sha256(authors)".to_owned(),
    ] {
        let found = alter(&statements);
        assert!(matches!(found, Err(StoreError::Damaged(_))), "{statements}: {found:?}");
    }
}

#[test]
fn a_ledger_moves_to_the_server_and_back_with_its_chain() {
    let Some(server) = Server::start("moves", &[]) else { return };
    let directory = Directory::new();
    let mut run = common::run(common::create(&directory.ledger(), 8.0));
    drop(run.reserve(&round(0.05, 1.0), 7).unwrap());
    let mut open_elsewhere = Ledger::open(directory.ledger(), Options::default()).unwrap();
    let file = run.close().unwrap().into_ledger();
    let (head, old) = (file.head().clone(), rows(&file));
    drop(file);
    let (from, shared) = (Location::from(&directory.ledger()), server.ledger("admin"));
    // Somebody who may not create it changes nothing.
    let options = Options::default();
    assert!(Ledger::relocate(&from, &server.ledger("trainer"), &options).is_err());
    assert_eq!(Ledger::relocate(&from, &shared, &options).unwrap(), head);
    // The old file is read and verified, and charged by nobody.
    let file = Ledger::read(&from, options.clone()).unwrap();
    file.audit().unwrap();
    assert_eq!(rows(&file), old);
    let error = Ledger::open(&from, options.clone()).err().unwrap().to_string();
    assert!(error.contains("moved"), "{error}");
    let error = open_elsewhere.tighten("data", Epsilon::new(1.0).unwrap()).unwrap_err().to_string();
    assert!(error.contains("moved"), "{error}");
    let moved = read(&server).unwrap();
    moved.audit().unwrap();
    assert_eq!(rows(&moved), old);
    // All rows were appended at once, so one that says another author is noticed in the middle of them.
    for column in ["host", "role"] {
        let kept = format!(
            "UPDATE veilgrad.event SET {column} = (SELECT {column} FROM veilgrad.event WHERE sequence = 1)"
        );
        for (value, is_noticed) in [
            ("UPDATE veilgrad.event SET {column} = 'other' WHERE sequence = 2", true),
            (&kept, false),
        ] {
            let statement = value.replace("{column}", column);
            server.sql(
                "owner",
                "ledger",
                &format!("SET session_replication_role = replica; {statement}"),
            );
            assert_eq!(read(&server).unwrap().audit().is_err(), is_noticed, "{statement}");
        }
    }
    let mut more = self::run(open(&server, "trainer")).unwrap();
    // A held plan keeps the ledger where it is; this run holds none, and sees the move at its next charge.
    drop(more.reserve(&round(0.05, 1.0), 2).unwrap());
    let (head, all) = (more.store().ledger().head().clone(), rows(more.store().ledger()));
    let back = Location::from(directory.path().join("back.db"));
    assert_eq!(Ledger::relocate(&shared, &back, &options).unwrap(), head);
    assert!(more.reserve(&round(0.05, 1.0), 1).is_err());
    let ledger = Ledger::open(&back, options.clone()).unwrap();
    assert_eq!((rows(&ledger), charged(&ledger)), (all, 9));
    assert!(Ledger::open(&shared, options.clone()).is_err());
}

#[test]
fn a_move_is_completed_at_its_destination_and_never_repeated() {
    let Some(server) = begin("once", 100) else { return };
    let directory = Directory::new();
    let (shared, options) = (server.ledger("admin"), Options::default());
    let place = |name: &str| Location::from(directory.path().join(name));
    let head = read(&server).unwrap().head().clone();
    let relocate = |from: &Location, to: &Location| Ledger::relocate(from, to, &Options::default());
    let refused = |from: &Location, to: &Location| match relocate(from, to) {
        Err(StoreError::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    // From the server: interrupted after the old ledger was retired, by a file of another program in the way.
    let obstacle = directory.path().join("first.db.creating");
    std::fs::write(&obstacle, "foreign").unwrap();
    assert!(refused(&shared, &place("first.db")).contains("move it again"));
    assert!(refused(&shared, &place("second.db")).contains("first.db"));
    std::fs::remove_file(&obstacle).unwrap();
    assert_eq!(relocate(&shared, &place("first.db")).unwrap(), head);
    // Complete, but this was not noted.
    server.sql("owner", "ledger", "UPDATE veilgrad.head SET arrived = false");
    assert!(refused(&shared, &place("second.db")).contains("first.db"));
    assert_eq!(relocate(&shared, &place("first.db")).unwrap(), head);
    // What arrived is not made again where it was taken away.
    let _ = charged(&Ledger::open(place("first.db"), options.clone()).unwrap());
    for end in ["", ".anchor"] {
        let file = |name: &str| directory.path().join(format!("{name}{end}"));
        std::fs::rename(file("first.db"), file("taken.db")).unwrap();
    }
    for name in ["first.db", "second.db"] {
        let why = refused(&shared, &place(name));
        assert!(why.contains("was moved") && !Ledger::exists(&place(name), &options).unwrap());
    }
    // From the file: interrupted by the server.
    for name in ["back", "other"] {
        server.sql("owner", "postgres", &format!("CREATE DATABASE {name}"));
        server.sql("owner", name, veilgrad_ledger::MIGRATION);
    }
    let database = |name: &str| {
        Location::parse(format!("postgres://admin:s3cret@127.0.0.1:{}/{name}", server.port))
    };
    let stop = "CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'stop'; END $$; CREATE TRIGGER stop \
                BEFORE INSERT ON veilgrad.event FOR EACH ROW EXECUTE FUNCTION stop()";
    server.sql("owner", "back", stop);
    assert!(refused(&place("taken.db"), &database("back")).contains("move it again"));
    server.sql("owner", "back", "DROP TRIGGER stop ON veilgrad.event");
    let why = refused(&place("taken.db"), &database("other"));
    assert!(why.contains("/back") && !why.contains("s3cret"), "{why}");
    assert!(refused(&place("taken.db"), &place("second.db")).contains("/back"));
    Ledger::read(place("taken.db"), options.clone()).unwrap().audit().unwrap();
    // By another address of the same database.
    let alias = Location::parse(format!("postgres://admin@localhost:{}/back", server.port));
    assert_eq!(relocate(&place("taken.db"), &alias).unwrap(), head);
    server.sql("owner", "postgres", "DROP DATABASE back");
    server.sql("owner", "postgres", "CREATE DATABASE back TEMPLATE other");
    assert!(refused(&place("taken.db"), &database("back")).contains("was moved"));
    Ledger::read(place("taken.db"), options).unwrap().audit().unwrap();
}

#[test]
fn exports_imports_and_backups_work_as_for_a_file() {
    let Some(server) = begin("exchange", 100) else { return };
    let mut run = run(open(&server, "trainer")).unwrap();
    drop(run.reserve(&round(0.05, 1.0), 2).unwrap());
    drop(run);
    let directory = Directory::new();
    let ledger = read(&server).unwrap();
    let head = ledger.backup(&directory.ledger(), &Options::default()).unwrap();
    assert_eq!(head, *ledger.head());
    let restored = directory.path().join("restored.db");
    let copy = Ledger::restore(&restored, &ledger.export().unwrap(), Options::default()).unwrap();
    assert_eq!(rows(&copy), rows(&ledger));
    // A branch that went on elsewhere is charged in addition, once.
    let mut elsewhere = common::run(copy);
    drop(elsewhere.reserve(&round(0.05, 1.0), 3).unwrap());
    let export = elsewhere.store().ledger().export().unwrap();
    let mut admin = open(&server, "admin");
    assert_eq!(admin.import(&export).unwrap().charged, 2);
    assert_eq!(admin.import(&export).unwrap().charged, 0);
    let ledger = read(&server).unwrap();
    ledger.audit().unwrap();
    assert_eq!(charged(&ledger), 5);
}

#[test]
fn a_server_that_may_lose_charges_is_refused() {
    for (name, setting) in [("fsync", "fsync = off"), ("pages", "full_page_writes = off")] {
        let Some(server) = Server::start(name, &[setting]) else { return };
        let error = Ledger::create(server.ledger("admin"), Options::default()).err().unwrap();
        assert!(error.to_string().contains("fsync"), "{error}");
    }
}

#[test]
fn a_charge_waits_for_the_disk_whatever_the_server_is_set_to() {
    let Some(server) =
        Server::start("commit", &["synchronous_commit = off", "log_statement = all"])
    else {
        return;
    };
    // The trigger is called by the commit, and sees its setting.
    let mut ledger = Ledger::create(server.ledger("admin"), Options::default()).unwrap();
    server.sql(
        "owner",
        "ledger",
        "CREATE FUNCTION check_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF current_setting('synchronous_commit') \
         <> 'on' THEN RAISE EXCEPTION 'not durable'; END IF; RETURN NEW; END $$; \
         CREATE CONSTRAINT TRIGGER check_commit AFTER INSERT ON veilgrad.event DEFERRABLE INITIALLY DEFERRED FOR EACH ROW \
         EXECUTE FUNCTION check_commit()",
    );
    ledger.create_budget(budget("data", 1.0, Mode::Planned)).unwrap();
    drop(ledger);
    // Retiring waits for the disk as well.
    server.sql(
        "owner",
        "ledger",
        "CREATE CONSTRAINT TRIGGER check_head AFTER UPDATE ON veilgrad.head DEFERRABLE INITIALLY DEFERRED FOR EACH ROW \
         EXECUTE FUNCTION check_commit()",
    );
    server.sql("admin", "ledger", "SELECT veilgrad.retire('elsewhere')");
    server.sql("admin", "ledger", "SELECT veilgrad.arrive()");
}

#[test]
fn a_row_that_nobody_can_read_is_refused_or_removed_by_the_owner() {
    let Some(server) = begin("garbage", 100) else { return };
    let mut run = run(open(&server, "trainer")).unwrap();
    drop(run.reserve(&round(0.05, 1.0), 2).unwrap());
    drop(run);
    let before = rows(&read(&server).unwrap());
    let append = |bytes: &[u8]| {
        let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let after = before.len();
        let ending = format!("sha256(hash || '\\x{bytes}'::bytea)");
        server.try_sql(
            "trainer",
            "ledger",
            &format!(
                "SELECT veilgrad.append({after}, ARRAY['\\x{bytes}']::bytea[], {ending}, 'h') FROM veilgrad.head"
            ),
        )
    };
    // Not JSON, and not text.
    assert!(append(b"{\"kind\":\"run\",").unwrap_err().contains("json"));
    assert!(append(b"{\"kind\":\"run\",\"a\":\"\xff\"}").unwrap_err().contains("encoding"));
    assert_eq!(rows(&read(&server).unwrap()), before);
    // JSON that is not an event. docs/postgresql.md has these statements.
    append(b"{\"kind\":\"run\",\"a\":1}").unwrap();
    assert!(matches!(read(&server), Err(StoreError::Damaged(_))));
    let guide = include_str!("../../../docs/postgresql.md");
    let way_out = guide.split("```sql\n").nth(1).unwrap().split("```").next().unwrap();
    server.sql("owner", "ledger", &way_out.replace("LAST", &before.len().to_string()));
    let ledger = read(&server).unwrap();
    ledger.audit().unwrap();
    assert_eq!(rows(&ledger), before);
    drop(self::run(open(&server, "trainer")).unwrap().reserve(&round(0.05, 1.0), 1).unwrap());
}

#[test]
fn a_run_goes_on_after_a_lost_connection_and_its_hold_has_ended() {
    let Some(server) = begin("lost", 12) else { return };
    let mut run = planned(open(&server, "trainer"), 8).unwrap();
    drop(run.reserve(&round(0.05, 1.0), 2).unwrap());
    server.pg_ctl(&["restart", "-w", "-m", "immediate", "-l", "log"]);
    assert_eq!(read(&server).unwrap().holding("data").len(), 0);
    // While it was away, another plan was granted, which is not given away again.
    let other = planned(open(&server, "trainer"), 10).unwrap();
    assert!(run.reserve(&round(0.05, 1.0), 2).is_err());
    drop(other);
    drop(run.reserve(&round(0.05, 1.0), 2).unwrap());
    assert_eq!(charged(&read(&server).unwrap()), 4);
}

#[test]
fn passwords_are_asked_for_and_never_shown() {
    let Some(server) = begin("passwords", 12) else { return };
    server.write(
        "pg_hba.conf",
        "host all owner 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n",
    );
    server.pg_ctl(&["reload"]);
    let address = |password: &str| {
        let port = server.port;
        Location::parse(format!("postgres://trainer:{password}@127.0.0.1:{port}/ledger"))
    };
    let opened = Ledger::open(address("s3cret"), Options::default()).unwrap();
    assert!(!format!("{} {:?}", opened.location(), opened.location()).contains("s3cret"));
    let error = Ledger::open(address("wr0ng"), Options::default()).err().unwrap();
    let shown = format!("{error} {error:?}");
    assert!(shown.contains("password") && !shown.contains("wr0ng"), "{shown}");
}

#[test]
fn a_handle_without_an_answer_refuses_everything() {
    let Some(server) = begin("unanswered", 400) else { return };
    let mut run = run(open(&server, "trainer")).unwrap();
    let mut handle = open(&server, "admin");
    server.sql(
        "owner",
        "ledger",
        "CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN PERFORM \
         pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$; \
         CREATE TRIGGER stop BEFORE INSERT ON veilgrad.event FOR EACH ROW EXECUTE FUNCTION stop()",
    );
    let mut tighten = || handle.tighten("data", Epsilon::new(0.01).unwrap());
    assert!(run.reserve(&round(0.05, 1.0), 1).is_err());
    assert!(tighten().is_err());
    server.sql("owner", "ledger", "DROP TRIGGER stop ON veilgrad.event");
    // A run refuses whatever its ledger says; a ledger refuses because it does not know what is written.
    assert!(run.reserve(&round(0.05, 1.0), 1).is_err());
    assert_eq!(tighten().unwrap_err().to_string(), LedgerError::Poisoned.to_string());
    drop(run);
    let mut next = self::run(open(&server, "trainer")).unwrap();
    drop(next.reserve(&round(0.05, 1.0), 1).unwrap());
}

#[test]
fn certificates_are_verified_as_the_address_asks() {
    let Some(server) = begin("tls", 12) else { return };
    let directory = Directory::new();
    let openssl = |arguments: &[&str]| {
        let output = std::process::Command::new("openssl")
            .args(arguments)
            .current_dir(directory.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    for authority in ["root", "other"] {
        let (private, public) = (format!("{authority}.key"), format!("{authority}.crt"));
        let names =
            ["-keyout", &private, "-out", &public, "-subj", "/CN=test authority", "-days", "2"];
        openssl(&[&["req", "-x509"], &key[..], &names[..]].concat());
    }
    let names = ["-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost"];
    openssl(&[&["req"], &key[..], &names[..]].concat());
    std::fs::write(directory.path().join("names"), "subjectAltName=DNS:localhost\n").unwrap();
    openssl(&[
        "x509",
        "-req",
        "-in",
        "server.csr",
        "-CA",
        "root.crt",
        "-CAkey",
        "root.key",
        "-CAcreateserial",
        "-out",
        "server.crt",
        "-days",
        "2",
        "-extfile",
        "names",
    ]);
    for name in ["server.key", "server.crt"] {
        server.write(name, &std::fs::read_to_string(directory.path().join(name)).unwrap());
    }
    server.sql("owner", "postgres", "ALTER SYSTEM SET ssl = on");
    server.write(
        "pg_hba.conf",
        "hostssl all all 127.0.0.1/32 trust\nhost all owner 127.0.0.1/32 trust\n",
    );
    server.pg_ctl(&["restart", "-w", "-l", "log"]);
    let opens = |host: &str, parameters: &str| {
        let port = server.port;
        let root = directory.path().display();
        let address = format!("postgres://trainer@{host}:{port}/ledger?{parameters}")
            .replace("ROOT", &root.to_string());
        Ledger::read(Location::parse(address), Options::default())
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    opens("localhost", "sslmode=verify-full&sslrootcert=ROOT/root.crt").unwrap();
    opens("127.0.0.1", "sslmode=verify-ca&sslrootcert=ROOT/root.crt").unwrap();
    opens("127.0.0.1", "sslmode=require").unwrap();
    opens("127.0.0.1", "sslmode=prefer").unwrap();
    for (host, parameters) in [
        // A certificate for another host, of another authority, of one that the system does not know; and none.
        ("127.0.0.1", "sslmode=verify-full&sslrootcert=ROOT/root.crt"),
        ("localhost", "sslmode=verify-full&sslrootcert=ROOT/other.crt"),
        ("localhost", "sslmode=verify-ca&sslrootcert=ROOT/other.crt"),
        ("localhost", "sslmode=require&sslrootcert=ROOT/other.crt"),
        ("localhost", "sslmode=verify-full"),
        ("localhost", "sslmode=disable"),
    ] {
        assert!(opens(host, parameters).is_err(), "{host} {parameters}");
    }
}

/// A client that charges alone does not ask for the lock before every charge.
#[test]
fn a_client_that_was_alone_is_refused_what_another_charged_since() {
    let Some(server) = begin("alone", 400) else { return };
    let round = round(0.05, 1.0);
    let mut first = run(open(&server, "trainer")).unwrap();
    for _ in 0..8 {
        drop(first.reserve(&round, 1).unwrap());
    }
    let mut second = run(open(&server, "trainer")).unwrap();
    drop(second.reserve(&round, 1).unwrap());
    drop(first.reserve(&round, 1).unwrap());
    assert_eq!(charged(&read(&server).unwrap()), 10);
    for _ in 0..8 {
        drop(first.reserve(&round, 1).unwrap());
    }
    // The second takes all that is left.
    let mut block = 256;
    while block > 0 {
        if second.reserve(&round, block).is_err() {
            block /= 2;
        }
    }
    let spent = charged(&read(&server).unwrap());
    assert!(matches!(first.reserve(&round, 1), Err(LedgerError::BudgetExhausted(_))));
    let ledger = read(&server).unwrap();
    ledger.audit().unwrap();
    assert_eq!(charged(&ledger), spent);
}
