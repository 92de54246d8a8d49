//! Keys and tables of a configuration.

use super::value::Value;

/// A table of the configuration, and its keys.
#[derive(Debug)]
pub(crate) struct Table {
    /// Its path from the root, as in `data.columns`.
    pub(crate) path: &'static str,
    /// How messages and the documentation name it, as in `[[data.columns]]`.
    pub(crate) label: &'static str,
    pub(crate) about: &'static str,
    pub(crate) keys: &'static [Key],
}

/// A key of a table.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) value: Value,
    /// A value that is accepted, as it is written in TOML.
    pub(crate) example: &'static str,
    pub(crate) default: Default,
    /// The values of `kind` for which the key exists; empty if that does not matter.
    pub(crate) kinds: &'static [&'static str],
    pub(crate) about: &'static str,
    /// What the key does to the guarantee.
    pub(crate) effect: &'static str,
}

/// What holds if a key is not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Default {
    /// The key must be given.
    Required,
    /// Nothing is used in its place.
    Absent,
    /// This value, or what these words say.
    Is(&'static str),
}

/// A file that is read after the budget covers the plan.
pub(super) const PRIVATE: &str = "private: opened only when the budget covers the whole plan";
pub(super) const PUBLIC: &str = "must be public: results on it are printed without charge";
pub(super) const DECLARED: &str = "declared: public knowledge, never read off the private data";
pub(super) const NONE: &str = "none";

impl Key {
    pub(super) const fn new(
        name: &'static str,
        value: Value,
        example: &'static str,
        default: Default,
        about: &'static str,
        effect: &'static str,
    ) -> Self {
        Self { name, value, example, default, kinds: &[], about, effect }
    }

    pub(super) const fn of(self, kinds: &'static [&'static str]) -> Self {
        Self { kinds, ..self }
    }

    /// Whether a table of this kind has the key.
    pub(crate) fn is_for(&self, kind: Option<&str>) -> bool {
        self.kinds.is_empty() || kind.is_none_or(|kind| self.kinds.contains(&kind))
    }
}
