//! A run without a charge of its own exists only inside of a charged tuning.
#![allow(unused_imports)]

use veilgrad::events::{ChargedAhead, LedgerKind};
use veilgrad::prelude::*;

fn forge(header: RunHeader) -> Result<Run<ChargedAhead>, LedgerError> {
    Run::open(ChargedAhead { kind: LedgerKind::Durable }, header)
}

fn main() {}
