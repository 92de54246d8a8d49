//! Where the ledger is: one known place, whatever directory a command runs in.
//!
//! `--ledger FILE`, else `$VEILGRAD_LEDGER`, else `veilgrad/ledger.db` under `$XDG_STATE_HOME`, which is
//! `~/.local/state` by default. A place that followed the working directory or the results would begin a
//! fresh budget whenever either changes.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::output::create_directory;

pub(crate) const VARIABLE: &str = "VEILGRAD_LEDGER";
/// Where `budget` once looked by default.
const FORMER: &str = "veilgrad-ledger.db";

pub(crate) fn to_read(given: Option<&Path>) -> Result<PathBuf, Error> {
    choose(given).map(|(path, _)| path)
}

/// The ledger to write, which may not be there yet; the directory of the default place is made.
pub(crate) fn to_write(given: Option<&Path>) -> Result<PathBuf, Error> {
    let (path, is_default) = choose(given)?;
    if let Some(directory) = path.parent().filter(|_| is_default) {
        create_directory(directory)?;
    }
    Ok(path)
}

/// The path, and whether it is the default.
fn choose(given: Option<&Path>) -> Result<(PathBuf, bool), Error> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(path) = given.map(PathBuf::from).or_else(|| variable(VARIABLE).map(PathBuf::from)) {
        return Ok((path, false));
    }
    if Path::new(FORMER).exists() {
        return Err(Error::Usage(format!(
            "{FORMER} is in this directory, where ledgers were by default before; name it with --ledger \
             {FORMER}, or name another"
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
    Ok((state.join("veilgrad/ledger.db"), true))
}
