//! Two wrappers that keep the two sides of the mechanism apart.

use std::ops::Deref;

/// A value that depends on private data.
///
/// It has no `Debug`, `Display`, `Serialize` or `Deref`, so that it cannot slip into a log, an error
/// message or a file. [`Private::expose`] is the one, searchable way to look inside.
pub struct Private<T>(T);

impl<T> Private<T> {
    /// Marks a value as private.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// Looks inside. What is computed from the result is private as well.
    pub const fn expose(&self) -> &T {
        &self.0
    }

    pub(crate) const fn expose_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A value that was released by a charged mechanism, or computed from such values alone.
///
/// # Guarantee
/// Only [`ClippedSum::release`](crate::ClippedSum::release) creates it, and that consumes a sample
/// whose round was charged before. Reading it is post-processing and costs nothing.
///
/// An optimizer, a metric or a file that takes `Released<…>` cannot be handed anything else.
#[derive(Debug, Clone)]
pub struct Released<T>(T);

impl<T> Released<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(value)
    }

    pub(crate) fn into_inner(self) -> T {
        self.0
    }
}

impl<T> Deref for Released<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
