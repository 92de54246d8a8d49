//! Checks that the tables on the server are as the migration made them.

use super::session::Session;
use crate::error::StoreError;
use crate::location::PostgresUrl;

/// What the functions of the migration do.
const FUNCTIONS: &str = "SELECT string_agg(concat_ws(' ', proname, prosecdef::text, prosrc), '|' ORDER BY proname) FROM pg_proc \
                         WHERE pronamespace = 'veilgrad'::regnamespace";
/// Triggers, and whether they are disabled.
const TRIGGERS: &str = "SELECT string_agg(concat_ws(' ', tgname, tgtype, tgenabled, tgfoid::regproc), '|' ORDER BY tgname) FROM \
                        pg_trigger WHERE NOT tgisinternal AND tgrelid = 'veilgrad.event'::regclass";
/// Rights of others than the owner, on tables and functions.
const RIGHTS: &str = "SELECT string_agg(line, '|' ORDER BY line COLLATE \"C\") FROM (\
     SELECT concat_ws(' ', relname, privilege_type, coalesce(r.rolname, 'PUBLIC')) AS line FROM pg_class c, \
     aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee \
     WHERE c.relnamespace = 'veilgrad'::regnamespace AND c.relkind = 'r' AND a.grantee <> c.relowner UNION \
     SELECT concat_ws(' ', proname, privilege_type, coalesce(r.rolname, 'PUBLIC')) FROM pg_proc p, \
     aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a LEFT JOIN pg_roles r ON r.oid = a.grantee \
     WHERE p.pronamespace = 'veilgrad'::regnamespace AND a.grantee <> p.proowner) AS rights";
/// What `RIGHTS` and `TRIGGERS` answer after the migration.
const EXPECTED_RIGHTS: &str = "append EXECUTE veilgrad_charge|event SELECT veilgrad_read|head SELECT veilgrad_read|\
                               lock_head EXECUTE veilgrad_charge|retire EXECUTE veilgrad_administer";
/// Before each row that is updated or deleted (27), before truncation (34).
const EXPECTED_TRIGGERS: &str =
    "event_change 27 O veilgrad.refuse_change|event_truncate 34 O veilgrad.refuse_change";

/// Refuses a ledger whose triggers, rights or functions were altered.
pub(super) fn check(session: &mut Session, address: &PostgresUrl) -> Result<(), StoreError> {
    let mut ask = |query: &str| {
        let rows = session.run(query).map_err(|failure| failure.error(address))?;
        Ok::<_, StoreError>(rows.into_iter().flatten().next().unwrap_or_default())
    };
    let altered = |what: &str| StoreError::Damaged(format!("its {what} were altered"));
    if ask(TRIGGERS)? != EXPECTED_TRIGGERS {
        return Err(altered("triggers"));
    }
    if ask(RIGHTS)? != EXPECTED_RIGHTS {
        return Err(altered("rights"));
    }
    if ask(FUNCTIONS)? != expected_functions() {
        return Err(altered("functions"));
    }
    Ok(())
}

/// What `FUNCTIONS` answers after the migration, from its text.
fn expected_functions() -> String {
    let mut functions: Vec<String> = crate::schema::MIGRATION
        .split("CREATE FUNCTION veilgrad.")
        .skip(1)
        .filter_map(|text| {
            let name = text.split('(').next()?;
            let mut parts = text.split("$$");
            let definer = parts.next()?.contains("SECURITY DEFINER");
            Some(format!("{name} {definer} {}", parts.next()?))
        })
        .collect();
    functions.sort();
    functions.join("|")
}
