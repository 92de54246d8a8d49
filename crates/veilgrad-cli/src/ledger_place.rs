//! The path of the ledger, which does not depend on the working directory.
//!
//! `--ledger FILE|URL`, else `$VEILGRAD_LEDGER`, else `veilgrad/ledger.db` under `$XDG_STATE_HOME`, which is
//! `~/.local/state` by default. A path that depended on the working directory or on the results would start a fresh
//! budget whenever either changes.

use std::path::{Path, PathBuf};

use veilgrad_ledger::Location;

use crate::error::Error;
use crate::output::create_directory;

pub(crate) const VARIABLE: &str = "VEILGRAD_LEDGER";
/// The former default of `budget`.
const FORMER: &str = "veilgrad-ledger.db";

pub(crate) fn to_read(given: Option<&Location>) -> Result<Location, Error> {
    choose(given).map(|(path, _)| path)
}

/// The ledger to write, which may not exist yet. Creates the directory of the default path.
pub(crate) fn to_write(given: Option<&Location>) -> Result<Location, Error> {
    let (path, is_default) = choose(given)?;
    if let Some(directory) = path.file().and_then(Path::parent).filter(|_| is_default) {
        create_directory(directory)?;
    }
    Ok(path)
}

/// The location, and whether it is the default.
fn choose(given: Option<&Location>) -> Result<(Location, bool), Error> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(path) = given.cloned().or_else(|| variable(VARIABLE).map(Location::from)) {
        return Ok((path, false));
    }
    if Path::new(FORMER).exists() {
        return Err(Error::Usage(format!(
            "{FORMER} is in this directory, which was the default place of ledgers; pass --ledger {FORMER} to use \
             it, or name another"
        )));
    }
    let absolute = |path: &PathBuf| path.is_absolute();
    let state = variable("XDG_STATE_HOME").map(PathBuf::from).filter(absolute);
    let home = || variable("HOME").map(PathBuf::from).filter(absolute);
    let state = state.or_else(|| Some(home()?.join(".local/state"))).ok_or_else(|| {
        Error::Usage(format!(
            "there is no home directory: name the ledger with --ledger or {VARIABLE}"
        ))
    })?;
    Ok((state.join("veilgrad/ledger.db").into(), true))
}
