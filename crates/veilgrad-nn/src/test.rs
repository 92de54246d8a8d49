//! A small generator for tests.

use veilgrad_mechanism::insecure;
use veilgrad_mechanism::{OuterProducts, PartialSum, RecordVector, RoundPlan};

use crate::Model;
use crate::native::vectors;
use crate::product::RoundedProducts;
use crate::tile::Tile;

/// Numbers from a seed.
pub(crate) struct Words(pub(crate) u64);

impl Words {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In [0, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Roughly normal.
    pub(crate) fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }

    /// Any f32 at all.
    pub(crate) fn any(&mut self) -> f32 {
        f32::from_bits(self.next() as u32)
    }
}

/// The part of a sum that a model adds to, with places for outer products.
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

/// What a row of a tile brings for the trained parameters.
pub(crate) fn vectors_of<'a>(model: &Model, tile: &'a Tile, row: usize) -> Vec<RecordVector<'a>> {
    let (vectors, order) = vectors(model);
    let trained = &order[..vectors.trained.len()];
    let vector = |parameter: &usize| match tile.factors(*parameter, row) {
        Some((left, right)) => RecordVector::Outer(left, right),
        None => RecordVector::Values(tile.gradient(*parameter, row)),
    };
    trained.iter().map(vector).collect()
}
