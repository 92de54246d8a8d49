//! Kinds whose record is a microbatch or a user: average its gradients, then clip.

use veilgrad::mechanism::insecure::seeded_noise;
use veilgrad::prelude::*;

use crate::case::{Case, Outcome, Verdict, flatten, list, text, vectors};
use crate::round::{
    clip_norm, estimate, flat, noiseless, one_vector, round, standard_deviation, structure,
};

/// Gradients of `1/2 ||x - w||^2` per example.
fn gradients(w: &[f64], data: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let gradient = |x: &Vec<f32>| x.iter().zip(w).map(|(x, w)| *w as f32 - x).collect();
    data.iter().map(gradient).collect()
}

fn mean(vectors: &[Vec<f32>]) -> Vec<f32> {
    let dimension = vectors.first().map_or(0, Vec::len);
    let coordinate = |j: usize| vectors.iter().map(|vector| vector[j]).sum::<f32>();
    (0..dimension).map(|j| coordinate(j) / vectors.len() as f32).collect()
}

pub(crate) fn gradient(case: &Case<'_>) -> Outcome {
    let data = vectors(case.input("data")?)?;
    let w = flatten(case.input("w")?)?;
    let microbatches = case.number("num_microbatches")?;
    let size = data.len() / microbatches as usize;
    let records: Vec<Vec<f32>> = gradients(&w, &data).chunks(size).map(mean).collect();
    let clip = clip_norm(case.number("clip")?, &records)?;
    let denominator = PublicCount::new(microbatches).map_err(text)?;
    let plan = one_vector(w.len(), flat(clip).average(denominator))?;
    let found = estimate(&*noiseless(&plan, &records)?, "x")?;
    case.compare_on_grid("grad", &found, case.expected("grad")?, clip.get())
}

pub(crate) fn noise(case: &Case<'_>) -> Outcome {
    let clip = ClipNorm::new(case.number("clip")?).map_err(text)?;
    let noise = match case.number("noise_multiplier") {
        Ok(z) => z * clip.get(),
        Err(_) => case.number("stddev")?,
    };
    let counts = flatten(case.input("num_microbatches")?)?;
    let expected = flatten(case.expected("sample_stddev")?)?;
    for (count, expected) in counts.iter().zip(expected) {
        let group = flat(clip)
            .noise(NoiseStd::new(noise).map_err(text)?)
            .average(PublicCount::new(*count).map_err(text)?);
        let structure = structure([("x", 10_000)])?;
        let plan = RoundPlan::new(structure, vec![group], Allocation::Explicit).map_err(text)?;
        let noise = seeded_noise(&plan, 4).map_err(text)?;
        let estimates = round(&plan, noise, |_, _| Ok(()))?;
        let spread = standard_deviation(estimate(&estimates, "x")?.iter().copied());
        case.compare("sample_stddev", &[spread], &expected.into())?;
    }
    Ok(Verdict::Passed)
}

pub(crate) fn user_sum(case: &Case<'_>) -> Outcome {
    let w = flatten(case.input("w")?)?;
    let users: Vec<Vec<f32>> = list(case.input("users")?)?
        .iter()
        .map(|user| {
            let examples: Vec<Vec<f32>> =
                flatten(user)?.into_iter().map(|x| vec![x as f32]).collect();
            Ok(mean(&gradients(&w, &examples)))
        })
        .collect::<Result<_, String>>()?;
    let clip = clip_norm(crate::case::number(case.input("clip")?)?, &users)?;
    let plan = one_vector(1, flat(clip))?;
    let found = estimate(&*noiseless(&plan, &users)?, "x")?;
    case.compare_on_grid("grad", &found, case.expected("grad")?, clip.get())
}
