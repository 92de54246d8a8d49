//! Loss functions of one record's output and target.

/// A loss function.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Loss {
    /// Softmax cross-entropy; the target is a class index.
    SoftmaxCrossEntropy,
    /// Binary cross-entropy with logits, summed over the outputs; the targets are in [0, 1].
    Logistic,
    /// Half the squared distance from the targets.
    SquaredError,
    /// Huber's loss: half the squared distance from a target up to the threshold, and linear beyond, summed over the outputs.
    Huber {
        /// Where it becomes linear.
        threshold: f32,
    },
}

/// The loss of a record, and whether its prediction is right.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judgement {
    /// The loss.
    pub loss: f32,
    /// 1 if the prediction is right, else 0; for several logistic outputs, the fraction that is right.
    pub right: f32,
}

impl Loss {
    /// The length of a target, for this many outputs.
    #[must_use]
    pub const fn targets(self, outputs: usize) -> usize {
        match self {
            Self::SoftmaxCrossEntropy => 1,
            Self::Logistic | Self::SquaredError | Self::Huber { .. } => outputs,
        }
    }

    /// The loss of one record, and its gradient by the outputs, which is written to `gradient`. `None` if the target is
    /// out of range or the loss is not finite: the record must then contribute zero.
    pub fn judge(self, outputs: &[f32], target: &[f32], gradient: &mut [f32]) -> Option<Judgement> {
        let judgement = match self {
            Self::SoftmaxCrossEntropy => softmax(outputs, class(target, outputs.len())?, gradient),
            Self::Logistic => {
                if !target.iter().all(|target| (0.0..=1.0).contains(target)) {
                    return None;
                }
                logistic(outputs, target, gradient)
            }
            Self::SquaredError => squared(outputs, target, gradient),
            Self::Huber { threshold } => huber(outputs, target, threshold, gradient),
        };
        judgement.loss.is_finite().then_some(judgement)
    }
}

/// The class index in a target; `None` if it is not one of `classes`.
pub(crate) fn class(target: &[f32], classes: usize) -> Option<usize> {
    let number = *target.first()?;
    // The cast saturates and turns NaN into 0; the comparison rejects both.
    let class = number as usize;
    (class as f32 == number && class < classes).then_some(class)
}

fn softmax(outputs: &[f32], class: usize, gradient: &mut [f32]) -> Judgement {
    let largest =
        outputs.iter().copied().fold(f32::NEG_INFINITY, |a, b| if b <= a { a } else { b });
    let mut total = 0.0;
    for (gradient, output) in gradient.iter_mut().zip(outputs) {
        *gradient = libm::expf(output - largest);
        total += *gradient;
    }
    gradient.iter_mut().for_each(|gradient| *gradient /= total);
    gradient[class] -= 1.0;
    let loss = libm::logf(total) - (outputs[class] - largest);
    Judgement { loss, right: if outputs[class] >= largest { 1.0 } else { 0.0 } }
}

fn logistic(outputs: &[f32], targets: &[f32], gradient: &mut [f32]) -> Judgement {
    let (mut loss, mut right) = (0.0, 0.0);
    for ((gradient, x), target) in gradient.iter_mut().zip(outputs).zip(targets) {
        let small = libm::expf(-x.abs());
        let probability = if *x >= 0.0 { 1.0 / (1.0 + small) } else { small / (1.0 + small) };
        *gradient = probability - target;
        let positive = if *x > 0.0 { *x } else { 0.0 };
        loss += positive - x * target + libm::log1pf(small);
        right += if (*x >= 0.0) == (*target >= 0.5) { 1.0 } else { 0.0 };
    }
    // Explicit, so that no rewrite of the sum above can hide a NaN.
    if outputs.iter().any(|x| x.is_nan()) {
        loss = f32::NAN;
    }
    Judgement { loss, right: right / outputs.len() as f32 }
}

fn squared(outputs: &[f32], targets: &[f32], gradient: &mut [f32]) -> Judgement {
    let mut loss = 0.0;
    for ((gradient, x), target) in gradient.iter_mut().zip(outputs).zip(targets) {
        *gradient = x - target;
        loss += *gradient * *gradient / 2.0;
    }
    Judgement { loss, right: 0.0 }
}

fn huber(outputs: &[f32], targets: &[f32], threshold: f32, gradient: &mut [f32]) -> Judgement {
    let mut loss = 0.0;
    for ((gradient, x), target) in gradient.iter_mut().zip(outputs).zip(targets) {
        let distance = (x - target).abs();
        if distance <= threshold {
            *gradient = x - target;
            loss += distance * distance / 2.0;
        } else {
            // NaN comes here, and makes the loss NaN.
            *gradient = if x > target { threshold } else { -threshold };
            loss += threshold * (distance - threshold / 2.0);
        }
    }
    Judgement { loss, right: 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_agree_with_finite_differences_of_the_loss() {
        for (loss, target) in [
            (Loss::SoftmaxCrossEntropy, vec![2.0]),
            (Loss::Logistic, vec![1.0, 0.0, 0.25]),
            (Loss::SquaredError, vec![1.0, -2.0, 0.5]),
            // On both sides of the threshold, above and below the target.
            (Loss::Huber { threshold: 0.9 }, vec![1.0, -3.5, 0.5]),
            (Loss::Huber { threshold: 0.9 }, vec![2.0, -0.5, 2.5]),
        ] {
            let outputs = [0.3f32, -1.2, 2.1];
            let mut gradient = [0.0; 3];
            loss.judge(&outputs, &target, &mut gradient).unwrap();
            for j in 0..3 {
                let loss_after = |step: f32| {
                    let mut moved = outputs;
                    moved[j] += step;
                    loss.judge(&moved, &target, &mut [0.0; 3]).unwrap().loss
                };
                let slope = (loss_after(1e-2) - loss_after(-1e-2)) / 2e-2;
                assert!(
                    (slope - gradient[j]).abs() < 1e-3,
                    "{loss:?} {j}: {slope} {}",
                    gradient[j]
                );
            }
        }
    }

    #[test]
    fn invalid_targets_and_outputs_have_no_judgement() {
        let mut gradient = [0.0; 2];
        for target in [-1.0, 2.0, 0.5, f32::NAN, f32::INFINITY, 1e30] {
            assert!(
                Loss::SoftmaxCrossEntropy.judge(&[0.0, 1.0], &[target], &mut gradient).is_none()
            );
        }
        for target in [-0.1, 1.1, f32::NAN] {
            assert!(Loss::Logistic.judge(&[0.0, 1.0], &[target, 0.0], &mut gradient).is_none());
        }
        for output in [f32::NAN, f32::INFINITY] {
            let outputs = [output, 0.0];
            assert!(Loss::SoftmaxCrossEntropy.judge(&outputs, &[1.0], &mut gradient).is_none());
            assert!(Loss::SquaredError.judge(&outputs, &[1.0, 1.0], &mut gradient).is_none());
            let huber = Loss::Huber { threshold: 1.0 };
            assert!(huber.judge(&outputs, &[1.0, 1.0], &mut gradient).is_none());
        }
        assert!(Loss::Logistic.judge(&[f32::NAN, 0.0], &[1.0, 1.0], &mut gradient).is_none());
    }
}
