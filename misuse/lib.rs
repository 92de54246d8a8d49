//! Only the test in `tests.rs` and the programs in `cases/` matter here.
