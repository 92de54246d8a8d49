//! Random numbers and sums of single records, for tests.

use veilgrad_mechanism::insecure;
use veilgrad_mechanism::{OuterProducts, PartialSum, RecordVector, RoundPlan};

use crate::Model;
pub(crate) use crate::model::SplitMix64;
use crate::native::vectors;
use crate::product::RoundedProducts;
use crate::tile::Tile;

impl SplitMix64 {
    /// Roughly standard normal.
    pub(crate) fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }

    /// Any f32, including NaN and infinities.
    pub(crate) fn any(&mut self) -> f32 {
        f32::from_bits(self.next() as u32)
    }
}

/// An empty partial sum for a model, with accumulators for outer products.
pub(crate) fn begin_part(model: &Model, plan: &RoundPlan) -> PartialSum {
    let (vectors, _) = vectors(model);
    insecure::begin_part(plan, |name| {
        let (inputs, outputs) = vectors.trained.iter().find(|v| v.name == name)?.outer?;
        let s_int = plan.grid_of(name).unwrap().s_int();
        let products: Box<dyn OuterProducts> =
            Box::new(RoundedProducts::new(inputs, outputs, s_int));
        Some(products)
    })
}

/// The gradients of a row of a tile.
pub(crate) fn vectors_of<'a>(model: &Model, tile: &'a Tile, row: usize) -> Vec<RecordVector<'a>> {
    let (vectors, order) = vectors(model);
    let trained = &order[..vectors.trained.len()];
    trained.iter().map(|parameter| tile.vector(*parameter, row)).collect()
}
