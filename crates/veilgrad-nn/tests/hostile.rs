//! Records that overflow in one place: they count in all groups or in none, on both routes.

mod common;

use common::{bits, examples, in_memory, plan, train_exactly};
use veilgrad_events::{BudgetShare, ClipNorm};
use veilgrad_nn::{Layer, Model, Performance, Schedule, Sgd, Trainer, Watch};

const ONE_THREAD: Performance = Performance { threads: 1, tile: 32 };

#[test]
fn a_record_whose_statistics_overflow_counts_in_no_group() {
    let layers = || [Layer::BatchNorm, Layer::Flatten, Layer::linear(3)];
    let model = Model::new(&[6, 6, 1], layers(), 4).unwrap();
    let share = BudgetShare::new(0.1).unwrap();
    for materialised in [false, true] {
        let run = |data: &[_]| {
            let plan = plan(1.0, 1.0)
                .statistics(ClipNorm::new(1.0).unwrap(), share)
                .watch(Watch::ClassCounts { classes: 3 }, share);
            let plan = if materialised { plan.materialised() } else { plan };
            let rate = Schedule::Constant(1.0);
            let mut trainer =
                Trainer::new(model.clone(), plan, Sgd::plain(), rate, ONE_THREAD).unwrap();
            let progress = train_exactly(&mut trainer, &in_memory(data), 1).unwrap();
            let counts: Vec<u64> =
                progress.metric("classes").unwrap().iter().map(|count| count.to_bits()).collect();
            (bits(trainer.model()), counts)
        };
        let sound = examples(3, 8);
        let expected = run(&sound);
        for label in [0.0, 1.0, 2.0] {
            // Its square is not finite, its loss and its gradient are.
            let mut large = sound[0].clone();
            (large.0[0], large.1) = (1e25, label);
            let with: Vec<_> = sound.iter().cloned().chain([large]).collect();
            assert_eq!(run(&with), expected, "materialised: {materialised}, label {label}");
        }
    }
}
