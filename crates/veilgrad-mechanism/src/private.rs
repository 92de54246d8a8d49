//! Wrappers for private and for released values.

use std::ops::Deref;

/// A value that depends on private data.
///
/// It has no `Debug`, `Display`, `Serialize` or `Deref`, so that it cannot leak into a log, an error
/// message or a file by accident. [`Private::expose`] is the only way to read it, and easy to search for.
pub struct Private<T>(T);

impl<T> Private<T> {
    /// Marks a value as private.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The private value. Everything computed from it is private as well.
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
/// Only a release of a [`ClippedSum`](crate::ClippedSum) creates it, which consumes a sample whose round was charged
/// before. Reading it is post-processing and costs nothing.
///
/// A function that takes `Released<…>` cannot be called with an unreleased value.
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
