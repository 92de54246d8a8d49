//! Every key of a configuration. Configurations are checked against this list, and docs/configuration.md is made from it.

mod data;
mod key;
mod model;
mod page;
mod training;
mod value;

pub(crate) use key::{Default, Key, Table};
pub(crate) use page::page;
pub(crate) use value::Value;

/// All tables.
pub(crate) fn tables() -> impl Iterator<Item = &'static Table> {
    data::TABLES.iter().chain(model::TABLES).chain(training::TABLES)
}

/// The table with this path.
pub(crate) fn table(path: &str) -> Option<&'static Table> {
    tables().find(|table| table.path == path)
}

/// The tables at the root, and whether each must be there.
pub(crate) const ROOT: [(&str, bool); 5] =
    [("data", true), ("model", true), ("privacy", true), ("train", true), ("audit", false)];
