//! Checks that the tables on the server are as the migration made them, and who wrote each row.

use super::session::{BATCH, Session, decode_hex, number};
use crate::chain::{Chained, Hash};
use crate::error::StoreError;
use crate::location::PostgresUrl;

/// What the functions of the migration take and do, with which rights and search path, and whether they belong to the owner.
const FUNCTIONS: &str = "SELECT string_agg(concat_ws(' ', proname, pg_get_function_arguments(p.oid), prosecdef::text, lanname, \
                         array_to_string(proconfig, ','), proowner = nspowner, prosrc), '|' ORDER BY proname COLLATE \"C\") FROM pg_proc p JOIN pg_language l \
                         ON l.oid = prolang JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname = 'veilgrad'";
/// Triggers of all tables: when they are called, whether they are disabled, and whether they have conditions or columns.
const TRIGGERS: &str = "SELECT string_agg(concat_ws(' ', relname, tgname, tgtype, tgenabled, tgfoid::regproc, tgqual IS NULL AND \
                        tgattr::text = ''), '|' ORDER BY relname, tgname) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid \
                        WHERE NOT tgisinternal AND relnamespace = 'veilgrad'::regnamespace";
/// Tables, indices and whatever else there is: logged, without row security, rules and heirs, and of the owner.
const TABLES: &str = "SELECT string_agg(concat_ws(' ', relname, relkind, relpersistence, relrowsecurity OR relforcerowsecurity, \
                      EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid), EXISTS (SELECT FROM pg_inherits i WHERE \
                      i.inhparent = c.oid OR i.inhrelid = c.oid), relowner = nspowner), '|' ORDER BY relname COLLATE \"C\") \
                      FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'veilgrad'";
/// Columns, whether they may be NULL, and whether they have a default.
const COLUMNS: &str = "SELECT string_agg(concat_ws(' ', relname, attname, format_type(atttypid, atttypmod), attnotnull, atthasdef), \
                       '|' ORDER BY relname COLLATE \"C\", attnum) FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE \
                       relnamespace = 'veilgrad'::regnamespace AND relkind = 'r' AND attnum > 0";
/// Indices with their columns: unique, primary, at once, valid, and for all rows; and constraints but NOT NULL.
const KEYS: &str = "SELECT string_agg(line, '|' ORDER BY line COLLATE \"C\") FROM (\
     SELECT concat_ws(' ', relname, indkey, indisunique, indisprimary, indimmediate, indisvalid, indpred IS NULL) AS line \
     FROM pg_index JOIN pg_class c ON c.oid = indexrelid WHERE relnamespace = 'veilgrad'::regnamespace UNION ALL \
     SELECT concat_ws(' ', conname, contype) FROM pg_constraint WHERE connamespace = 'veilgrad'::regnamespace AND contype NOT \
     IN ('n', 't')) AS lines";
/// Rights of others than the owner, on the schema, tables, columns and functions, and to which roles those of the migration
/// belong.
const RIGHTS: &str = "WITH rights AS (\
     SELECT nspname AS object, (aclexplode(nspacl)).*, nspowner AS owner FROM pg_namespace WHERE nspname = 'veilgrad' \
     UNION ALL SELECT relname, (aclexplode(relacl)).*, relowner FROM pg_class WHERE relnamespace = 'veilgrad'::regnamespace \
     UNION ALL SELECT relname || '.' || attname, (aclexplode(attacl)).*, relowner FROM pg_attribute JOIN pg_class c ON \
     c.oid = attrelid WHERE relnamespace = 'veilgrad'::regnamespace \
     UNION ALL SELECT proname, (aclexplode(coalesce(proacl, acldefault('f', proowner)))).*, proowner FROM pg_proc \
     WHERE pronamespace = 'veilgrad'::regnamespace) \
     SELECT string_agg(line, '|' ORDER BY line COLLATE \"C\") FROM (\
     SELECT concat_ws(' ', object, privilege_type, coalesce(rolname, 'PUBLIC'), CASE WHEN is_grantable THEN 'TO GRANT' END) \
     AS line FROM rights LEFT JOIN pg_roles r ON r.oid = grantee WHERE grantee <> owner UNION \
     SELECT concat_ws(' ', 'role', g.rolname, m.rolname) FROM pg_auth_members JOIN pg_roles g ON g.oid = roleid JOIN \
     pg_roles m ON m.oid = member WHERE m.rolname IN ('veilgrad_read', 'veilgrad_charge', 'veilgrad_administer')) AS lines";
/// What these answer after the migration.
const EXPECTED_RIGHTS: &str = "append EXECUTE veilgrad_charge|arrive EXECUTE veilgrad_administer|event SELECT veilgrad_read|\
                               head SELECT veilgrad_read|lock_head EXECUTE veilgrad_charge|retire EXECUTE veilgrad_administer|\
                               role veilgrad_charge veilgrad_administer|role veilgrad_read veilgrad_charge|\
                               veilgrad USAGE veilgrad_read";
const EXPECTED_TABLES: &str =
    "event r p f f f t|event_pkey i p f f f t|head r p f f f t|head_pkey i p f f f t";
const EXPECTED_COLUMNS: &str = "event sequence bigint t f|event bytes bytea t f|event hash bytea t f|event role name t f|\
                                event host text t f|event authors bytea t f|head single boolean t f|\
                                head version integer t f|head sequence bigint t f|head hash bytea t f|\
                                head previous bytea t f|head authors bytea t f|head moved boolean t f|\
                                head destination text f f|head arrived boolean t f";
const EXPECTED_KEYS: &str = "event_pkey 1 t t t t t|event_pkey p|head_pkey 1 t t t t t|head_pkey p";
/// Before each row that is updated or deleted (27), before truncation (34).
const EXPECTED_TRIGGERS: &str = "event event_change 27 O veilgrad.refuse_change t|event event_truncate 34 O \
                                 veilgrad.refuse_change t";

/// Refuses a ledger whose tables, columns, keys, triggers, rights or functions were altered, or the authors of whose rows were.
pub(super) fn check(session: &mut Session, address: &PostgresUrl) -> Result<(), StoreError> {
    let mut ask = |query: &str| {
        let rows = session.run(query).map_err(|failure| failure.error(address))?;
        Ok::<_, StoreError>(rows.into_iter().flatten().next().unwrap_or_default())
    };
    let functions = expected_functions();
    let expected = [
        ("tables", TABLES, EXPECTED_TABLES),
        ("columns", COLUMNS, EXPECTED_COLUMNS),
        ("keys", KEYS, EXPECTED_KEYS),
        ("triggers", TRIGGERS, EXPECTED_TRIGGERS),
        ("rights", RIGHTS, EXPECTED_RIGHTS),
        ("functions", FUNCTIONS, &functions),
    ];
    for (what, query, expected) in expected {
        if ask(query)? != expected {
            return Err(StoreError::Damaged(format!("its {what} were altered")));
        }
    }
    check_authors(session, address)
}

/// Rows that were appended at once, and by whom.
struct Appended {
    /// The number of the row before them.
    after: i64,
    count: i64,
    role: String,
    host: String,
    authors: Hash,
}

impl Appended {
    /// The chain after these rows, as `append` computes it.
    fn chained(&self, before: Hash) -> Hash {
        let Self { after, count, role, host, .. } = self;
        before.after(format!("{after} {count} {} {role} {host}", role.len()).as_bytes())
    }
}

/// Checks the chain of hashes over the authors of the rows, and that it ends where the head says.
fn check_authors(session: &mut Session, address: &PostgresUrl) -> Result<(), StoreError> {
    let altered = |row| StoreError::Damaged(format!("the role or host of row {row} was altered"));
    let head = session.run("SELECT sequence, encode(authors, 'hex') FROM veilgrad.head");
    let head = head.map_err(|failure| failure.error(address))?;
    let Some([ending, authors]) = head.first().map(Vec::as_slice) else {
        return Err(StoreError::Damaged("it has no head".to_owned()));
    };
    let (ending, ending_authors) = (number(ending)?, Hash::from_slice(&decode_hex(authors)?));
    let (mut chain, mut last, mut current) = (Hash::default(), 0, None::<Appended>);
    let mut finish = |rows: Option<Appended>| match rows {
        Some(rows) if rows.chained(chain) == rows.authors => {
            chain = rows.authors;
            Ok(())
        }
        Some(rows) => Err(altered(rows.after + 1)),
        None => Ok(()),
    };
    loop {
        let query = format!(
            "SELECT sequence, role, host, encode(authors, 'hex') FROM veilgrad.event WHERE sequence > {last} ORDER BY \
             sequence LIMIT {BATCH}"
        );
        let rows = session.run(&query).map_err(|failure| failure.error(address))?;
        for row in &rows {
            let [sequence, role, host, authors] = row.as_slice() else {
                return Err(StoreError::Damaged("a row has other columns".to_owned()));
            };
            let sequence = number(sequence)?;
            let authors =
                Hash::from_slice(&decode_hex(authors)?).ok_or_else(|| altered(sequence))?;
            if sequence == ending && Some(authors) != ending_authors {
                return Err(altered(sequence));
            }
            match &mut current {
                Some(rows) if rows.authors == authors => {
                    if rows.role != *role || rows.host != *host {
                        return Err(altered(sequence));
                    }
                    rows.count += 1;
                }
                _ => {
                    let (role, host) = (role.clone(), host.clone());
                    let next = Appended { after: last, count: 1, role, host, authors };
                    finish(current.replace(next))?;
                }
            }
            last = sequence;
        }
        if rows.len() < BATCH {
            return finish(current);
        }
    }
}

/// What `FUNCTIONS` answers after the migration, from its text.
fn expected_functions() -> String {
    let mut functions: Vec<String> = crate::schema::MIGRATION
        .split("CREATE FUNCTION veilgrad.")
        .skip(1)
        .filter_map(|text| {
            let (name, rest) = text.split_once('(')?;
            let arguments = rest.split(')').next()?;
            let mut parts = text.split("$$");
            let declaration = parts.next()?;
            let definer = declaration.contains("SECURITY DEFINER");
            let path = declaration.split("SET ").nth(1)?.split(" AS ").next()?;
            let path = path.replacen(" = ", "=", 1);
            Some(format!("{name} {arguments} {definer} plpgsql {path} t {}", parts.next()?))
        })
        .collect();
    functions.sort();
    functions.join("|")
}
