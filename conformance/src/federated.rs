//! Weighted averages of users' updates, over a public or a private denominator.

use veilgrad::mechanism::Cohort;
use veilgrad::mechanism::insecure::no_noise;
use veilgrad::prelude::*;

use crate::case::{Case, Outcome, flatten, text, vectors};
use crate::round::{clip_norm, estimate, flat, plan, structure};

/// One round of users with updates and weights: over `denominator`, or over the private weight sum, at least `floor`.
pub(crate) fn weighted_average(case: &Case<'_>) -> Outcome {
    let updates = vectors(case.input("records")?)?;
    let weights = flatten(case.input("weights")?)?;
    let clip = clip_norm(case.number("clip").unwrap_or(f64::INFINITY), &updates)?;
    let bound = WeightBound::new(case.number("weight_bound")?).map_err(text)?;
    let update = flat(clip).weighted(bound);
    let update = match case.number("denominator") {
        Ok(denominator) => update.average(PublicCount::new(denominator).map_err(text)?),
        Err(_) => {
            let floor = PublicCount::new(case.number("floor")?).map_err(text)?;
            update.average_over("weights", floor)
        }
    };
    let dimension = updates.first().map_or(1, Vec::len);
    let groups = vec![update, Group::weight("weights", bound)];
    let plan = plan(structure([("x", dimension)])?, groups)?;

    let header = RunHeader::new(RecordUnit::User, Adjacency::AddRemove);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "conformance").map_err(text)?;
    let round = plan.round(&AllRecords).map_err(text)?;
    let permit = run.reserve(&round, 1).map_err(text)?.next().ok_or("no permit")?;
    let users = updates.len() as u64;
    let mut cohort = Cohort::invite(permit, &mut AllRecords, users, &plan).map_err(text)?;
    for (user, (update, weight)) in (0..).zip(updates.iter().zip(&weights)) {
        cohort.receive(user, &[("x", update)], *weight);
    }
    let released = cohort.release(no_noise(&plan)).map_err(text)?;
    if let Ok(expected) = case.expected("weight_sum") {
        let found = released.scalar("weights").ok_or("no weight sum")?;
        case.compare_on_grid("weight sum", &[found], expected, bound.get())?;
    }
    let found = estimate(&released, "x")?;
    case.compare_on_grid("result", &found, case.expected("result")?, clip.get())
}
