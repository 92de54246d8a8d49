//! The short form: every saved input, every input on which a target once failed, and some altered ones.

use veilgrad_accounting::work;
use veilgrad_fuzz::drive::{input, panic_of};
use veilgrad_fuzz::{TARGETS, Target, saved};

/// Altered inputs per unit of a target's share.
const ALTERED: u64 = 15;

/// The most work of accountants for one input: about a second, at 5 ns a unit. It is counted, so that it is the same on every
/// machine.
const MOST_WORK: u64 = 190_000_000;

fn check(target: &Target) {
    let saved = saved::of(target.name);
    assert!(!saved.is_empty(), "{} has no corpus", target.name);
    let count = saved.len() as u64 + (ALTERED * target.share).clamp(40, 3000);
    for number in 0..count {
        let bytes = input(target, &saved, 1, number);
        let before = work::spent();
        if let Some(panic) = panic_of(|| (target.run)(&bytes)) {
            panic!("{}, input {number} of seed 1: {panic}", target.name);
        }
        let work = work::spent() - before;
        assert!(work <= MOST_WORK, "{}, input {number} of seed 1: {work} units", target.name);
    }
}

#[test]
fn nothing_that_reads_panics_or_breaks_a_promise() {
    std::thread::scope(|scope| {
        let (even, odd): (Vec<_>, Vec<_>) =
            TARGETS.iter().enumerate().partition(|(place, _)| place % 2 == 0);
        for part in [even, odd] {
            scope.spawn(move || part.iter().for_each(|(_, target)| check(target)));
        }
    });
}

#[test]
fn an_input_is_a_function_of_seed_target_and_number() {
    for target in TARGETS {
        let saved = saved::of(target.name);
        for number in [0, 1000, 1 << 40] {
            let again = input(target, &saved, 7, number);
            assert_eq!(input(target, &saved, 7, number), again, "{}", target.name);
        }
        let inputs: std::collections::HashSet<_> =
            (1000..1100).map(|number| input(target, &saved, 7, number)).collect();
        assert!(inputs.len() > 80, "{}: {} of 100 inputs differ", target.name, inputs.len());
    }
}
