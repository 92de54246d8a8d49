//! Catches panics without printing them: their messages may hold private values.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` on private records; `None` if it panicked. The panic message is not printed: a framework may panic on an
/// unusable record (an index out of range), and the message may hold the record's values.
pub fn quietly<T>(body: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    let outer = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(body));
    QUIET.set(outer);
    result.ok()
}
