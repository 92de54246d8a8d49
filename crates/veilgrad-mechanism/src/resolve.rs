//! Resolves the names in groups to vectors and groups.

use std::collections::HashMap;

use veilgrad_events::{IntegerGrid, JointScale};

use crate::group::{Content, Estimator};
use crate::pattern::{Vector, matching};
use crate::plan_error::PlanError;
use crate::planned::{Member, PlannedContent, PlannedGroup};
use crate::quantile::Source;
use crate::{Group, Structure};

/// Turns names into indices. The grids are placeholders until the noise is allocated.
pub(crate) fn resolve(
    structure: &Structure,
    groups: &[Group],
) -> Result<Vec<PlannedGroup>, PlanError> {
    let placeholder =
        IntegerGrid::new(1, 0).map_err(|error| PlanError::Grid(String::new(), error))?;
    // The first group with each name.
    let names = groups.iter().enumerate().rev().map(|(index, group)| (group.name.as_str(), index));
    let names: HashMap<&str, usize> = names.collect();
    let content_of = |name: &str| {
        let index = *names.get(name)?;
        Some((index, &groups.get(index)?.content))
    };
    let mut owner: Vec<Option<&str>> = vec![None; structure.vectors().count()];
    let mut observed = Vec::new();
    let mut adapted = vec![false; groups.len()];
    let mut planned = Vec::with_capacity(groups.len());
    for (index, group) in groups.iter().enumerate() {
        if names.get(group.name.as_str()) != Some(&index) {
            return Err(PlanError::DuplicateGroup(group.name.clone()));
        }
        if let Some(option) = group.misapplied {
            return Err(PlanError::Misapplied { group: group.name.clone(), option });
        }
        let reference = |target: &str, kind| PlanError::Reference {
            group: group.name.clone(),
            target: target.to_owned(),
            kind,
        };
        let (content, dimension) = match &group.content {
            Content::Vectors { patterns, clip, rule, weight } => {
                let members = claim(structure, &group.name, patterns, &mut owner)?;
                let dimension = members.last().map_or(0, |member| member.range.end);
                let (clip, rule, weight) = (*clip, *rule, *weight);
                (PlannedContent::Vectors { members, clip, rule, weight }, dimension)
            }
            Content::Weight(bound) => (PlannedContent::Weight(*bound), 1),
            Content::Quantile(quantile) => match &quantile.source {
                Source::Norm { group: target, floor } => {
                    let Some((target_index, Content::Vectors { clip, .. })) = content_of(target)
                    else {
                        return Err(reference(target, "a group of vectors"));
                    };
                    if clip < floor {
                        let (group, clip, floor) = (target.clone(), *clip, *floor);
                        return Err(PlanError::BelowFloor { group, clip, floor });
                    }
                    match adapted.get_mut(target_index) {
                        Some(taken) if !*taken => *taken = true,
                        _ => return Err(PlanError::AdaptedTwice(target.clone())),
                    }
                    (PlannedContent::QuantileOfNorm(quantile.clone(), target_index, *floor), 1)
                }
                Source::Value { vector, initial } => {
                    let vector_index =
                        structure.position(vector).ok_or_else(|| reference(vector, "a vector"))?;
                    if structure.vectors().nth(vector_index).is_none_or(|(_, d)| d != 1) {
                        return Err(reference(vector, "a scalar"));
                    }
                    observed.push(vector_index);
                    let content =
                        PlannedContent::QuantileOfValue(quantile.clone(), vector_index, *initial);
                    (content, 1)
                }
            },
        };
        let estimator = match &group.estimator {
            Estimator::Sum => Estimator::Sum,
            Estimator::Average(count) => Estimator::Average(*count),
            Estimator::AverageOver { group: target, minimum } => {
                let Some((group, Content::Weight(_))) = content_of(target) else {
                    return Err(reference(target, "a group of weights"));
                };
                Estimator::AverageOver { group, minimum: *minimum }
            }
        };
        let name = group.name.clone();
        planned.push(PlannedGroup { name, dimension, grid: placeholder, content, estimator });
    }
    for (index, ((name, _), owner)) in structure.vectors().zip(&owner).enumerate() {
        // A vector that a quantile observes need not be in a group as well.
        if owner.is_none() && !observed.contains(&index) {
            return Err(PlanError::Uncovered(name.to_owned()));
        }
    }
    Ok(planned)
}

/// The vectors that match a group's patterns, each recorded as owned by this group.
fn claim<'a>(
    structure: &Structure,
    group: &'a str,
    patterns: &[(String, JointScale)],
    owner: &mut [Option<&'a str>],
) -> Result<Vec<Member>, PlanError> {
    let mut chosen: Vec<(usize, usize, JointScale)> = Vec::new();
    for (text, alpha) in patterns {
        let vectors = matching(structure, text)?;
        if vectors.is_empty() {
            return Err(PlanError::NoMatch { group: group.to_owned(), pattern: text.clone() });
        }
        for Vector { index, name, dimension } in vectors {
            if let Some(slot) = owner.get_mut(index) {
                if let Some(first) = slot {
                    return Err(PlanError::Overlap {
                        vector: name.to_owned(),
                        first: (*first).to_owned(),
                        second: group.to_owned(),
                    });
                }
                *slot = Some(group);
            }
            chosen.push((index, dimension, *alpha));
        }
    }
    chosen.sort_by_key(|(vector, _, _)| *vector);
    let mut end = 0;
    Ok(chosen
        .into_iter()
        .map(|(vector, dimension, alpha)| {
            let start = end;
            end += dimension;
            Member { vector, alpha, range: start..end }
        })
        .collect())
}
