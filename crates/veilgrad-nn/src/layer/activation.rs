//! Activation functions, element by element.

use std::f32::consts::FRAC_1_SQRT_2;
use veilgrad_mechanism::exact::vectorised;

use super::operation::{Backward, Compiled, Operation, Packed, Spare};

/// A function and its derivative; the derivative is called with `x` and the function's value at `x`.
struct Activation<V, S> {
    value: V,
    slope: S,
}

pub(super) fn relu(shape: &[usize]) -> Compiled {
    // NaN stays NaN.
    let value = |x| if x < 0.0 { 0.0 } else { x };
    compile(shape, value, |_, y| if y > 0.0 { 1.0 } else { 0.0 })
}

pub(super) fn tanh(shape: &[usize]) -> Compiled {
    compile(shape, libm::tanhf, |_, y| 1.0 - y * y)
}

pub(super) fn gelu(shape: &[usize]) -> Compiled {
    // 1/sqrt(2 pi)
    const PEAK: f32 = 0.398_942_3;
    let normal_cdf = |x: f32| 0.5 * (1.0 + libm::erff(x * FRAC_1_SQRT_2));
    let slope = move |x: f32, _| {
        let density = PEAK * libm::expf(-x * x / 2.0);
        normal_cdf(x) + if density > 0.0 { x * density } else { 0.0 }
    };
    compile(shape, move |x| x * normal_cdf(x), slope)
}

fn compile<V, S>(shape: &[usize], value: V, slope: S) -> Compiled
where
    V: Fn(f32) -> f32 + Send + Sync + 'static,
    S: Fn(f32, f32) -> f32 + Send + Sync + 'static,
{
    (Some(Box::new(Activation { value, slope })), shape.to_vec())
}

impl<V, S> Operation for Activation<V, S>
where
    V: Fn(f32) -> f32 + Send + Sync,
    S: Fn(f32, f32) -> f32 + Send + Sync,
{
    fn forward(&self, _: Packed<'_>, _: usize, x: &[f32], y: &mut [f32], _: &mut Spare) {
        vectorised(
            #[inline(always)]
            || x.iter().zip(y.iter_mut()).for_each(|(x, y)| *y = (self.value)(*x)),
        );
    }

    fn backward(&self, pass: Backward<'_>) {
        let Some(dx) = pass.dx else { return };
        vectorised(
            #[inline(always)]
            || {
                for (((dx, dy), x), y) in dx.iter_mut().zip(pass.dy).zip(pass.x).zip(pass.y) {
                    *dx = dy * (self.slope)(*x, *y);
                }
            },
        );
    }
}
