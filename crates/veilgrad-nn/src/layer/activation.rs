//! Functions of one number.

use super::operation::{Backward, Compiled, Operation, Packed, Spare, fast};

/// A function and its derivative, which may use the value.
pub(super) trait Function: Send + Sync + 'static {
    fn value(x: f32) -> f32;
    fn slope(x: f32, y: f32) -> f32;
}

pub(super) struct Relu;
pub(super) struct Tanh;
pub(super) struct Gelu;

impl Function for Relu {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        // NaN stays NaN.
        if x < 0.0 { 0.0 } else { x }
    }

    #[inline(always)]
    fn slope(_: f32, y: f32) -> f32 {
        if y > 0.0 { 1.0 } else { 0.0 }
    }
}

impl Function for Tanh {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        libm::tanhf(x)
    }

    #[inline(always)]
    fn slope(_: f32, y: f32) -> f32 {
        1.0 - y * y
    }
}

impl Function for Gelu {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        x * normal_below(x)
    }

    #[inline(always)]
    fn slope(x: f32, _: f32) -> f32 {
        // 1/sqrt(2 pi)
        const PEAK: f32 = 0.398_942_3;
        let density = PEAK * libm::expf(-x * x / 2.0);
        normal_below(x) + if density > 0.0 { x * density } else { 0.0 }
    }
}

fn normal_below(x: f32) -> f32 {
    0.5 * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2))
}

struct Activation<F>(std::marker::PhantomData<fn() -> F>);

pub(super) fn compile<F: Function>(shape: &[usize], _: F) -> Compiled {
    (Some(Box::new(Activation::<F>(std::marker::PhantomData))), shape.to_vec())
}

impl<F: Function> Operation for Activation<F> {
    fn forward(&self, _: Packed<'_>, _: usize, x: &[f32], y: &mut [f32], _: &mut Spare) {
        fast(
            #[inline(always)]
            || {
                for (x, y) in x.iter().zip(y) {
                    *y = F::value(*x);
                }
            },
        );
    }

    fn backward(&self, pass: Backward<'_>) {
        let Some(dx) = pass.dx else { return };
        fast(
            #[inline(always)]
            || {
                for (((dx, dy), x), y) in dx.iter_mut().zip(pass.dy).zip(pass.x).zip(pass.y) {
                    *dx = dy * F::slope(*x, *y);
                }
            },
        );
    }
}
