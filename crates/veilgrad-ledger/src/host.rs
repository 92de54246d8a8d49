//! The name of this host.

/// The name of this host, as it says: `VEILGRAD_HOST`, else the name that the system has.
pub(crate) fn host() -> String {
    let declared = std::env::var("VEILGRAD_HOST").ok().filter(|name| !name.is_empty());
    let name = declared
        .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    name.chars().filter(|c| !c.is_control()).take(255).collect()
}
