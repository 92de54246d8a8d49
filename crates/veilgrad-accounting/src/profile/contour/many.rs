//! The transform of a composition of thousands of distinct steps: most of them by their cumulants, which add up, and
//! those with a large share of the loss, or heavy tails, one by one.

use realfft::num_complex::Complex64;

use super::inversion::{
    Contour, LEAST_DECAY, Line, MOST_CUT_OFF, MOST_FREQUENCIES, PIECES, negligible, period, wrap,
};
use super::product::{CharacteristicProduct, multiply};
use super::step::{TiltedNodes, TiltedStep};
use crate::cumulant::series::{DECAY_BANDS, ORDER, STRIDE, Scratch, StepSeries};
use crate::cumulant::{Cumulant, LEAST_NOISE, Smoothing, cumulant_step_by_step, payoff};
use crate::number::UNIT;
use crate::pair::Direction;
use crate::{Composition, Sampled, Step, work};

/// A step is added up by its cumulant series if the truncation error of all series together is at most this where it
/// counts most, estimated with a normal loss of the same variance.
const BEYOND: f64 = 1e-8;
/// It must also have its last frequency below this part of the radius of its series, since heavy-tailed losses decay
/// slower than a normal one. The truncation error, `1.7 (t/radius)^20`, is then 6e-5 at the last frequency and 6e-11 at
/// half of it.
const SERIES_MARGIN: f64 = 0.6;
/// Wrap-around may be larger by this, as a log, than `negligible` allows in other contours: e^(14 - 30), 1e-7 of delta.
const EXTRA_WRAP_AROUND: f64 = 14.0;
/// About how many quadrature nodes a step has; only the estimate of work depends on it.
const TYPICAL_NODES: u64 = 64;
/// At most this many steps without a cumulant series (fixed-size samples, or too many nodes): each is integrated by
/// itself, which takes long.
const MOST_WITHOUT_SERIES: usize = 2048;
/// The decay of the product is first bounded by every third step only (the others count as no decay, which is sound);
/// all steps are used if that does not suffice.
const DECAY_STRIDE: usize = 3;
/// Beyond the frequencies that [`Scratch::modulus_deficits`] covers, decay is bounded by the densities of this many
/// steps, those with the largest variances.
const LARGEST_VARIANCES: usize = 300;

/// Sums over all steps: their moments, and the cumulants of those whose series converges.
#[derive(Default)]
struct CumulantSums {
    log_moment: f64,
    /// The sum of moduli, and of errors.
    moment_size: f64,
    moment_error: f64,
    centre: f64,
    /// The sum of moduli of what `centre` adds up.
    centre_size: f64,
    cumulants: [f64; ORDER],
    sizes: [f64; ORDER],
    /// At least the error of the log of the product, apart from what lies beyond the series, which is at most this
    /// times t^ORDER.
    error: f64,
    beyond: f64,
    terms: f64,
    /// At most `-log |product|` from the last frequency on, by powers of STRIDE.
    decay: Vec<f64>,
    /// For every step: its number times its variance, and its place in the composition.
    variances: Vec<(f64, usize)>,
}

impl CumulantSums {
    /// Notes the moment of a step, and how fast its characteristic function decays from the last frequency on.
    fn add_moment(
        &mut self,
        series: &StepSeries,
        (count, place): (f64, usize),
        last: f64,
        modulus_deficits: [f64; DECAY_BANDS],
    ) {
        self.log_moment += count * series.log_moment;
        self.moment_size += count * series.log_moment.abs();
        self.moment_error += count * series.moment_error;
        self.centre += count * series.centre;
        self.centre_size += count * series.centre.abs();
        self.terms += 1.0;
        self.variances.push((count * series.variance, place));
        // Rises and then falls, so that an end is smallest; -log |x| >= (1 - |x|^2) / 2.
        let near = |t: f64| series.variance * t * t * (1.0 - series.bend * t * t);
        let mut t = last;
        for (decay, deficit) in self.decay.iter_mut().zip(modulus_deficits) {
            let next = t * STRIDE;
            *decay += 0.5 * count * deficit.max(near(t).min(near(next)));
            t = next;
        }
    }

    /// Notes the cumulants of a step whose series is good.
    fn add_cumulants(&mut self, series: &StepSeries, count: f64) {
        let sums = self.cumulants.iter_mut().zip(&mut self.sizes);
        for ((sum, size), cumulant) in sums.zip(&series.cumulants) {
            *sum += count * cumulant;
            *size += count * cumulant.abs();
        }
        // Characteristic functions are at least 1/2 there.
        self.error += 2.0 * count * series.error;
        let beyond = StepSeries::BEYOND * series.radius.powi(-(ORDER as i32));
        self.beyond += count * beyond.max(f64::MIN_POSITIVE);
    }

    /// Multiplies by the characteristic functions of all steps with a series, at `t`.
    fn multiply(&self, product: &mut CharacteristicProduct, t: f64) {
        let (mut log, mut size) = (Complex64::ZERO, 0.0);
        let (mut turn, mut power) = (Complex64::new(1.0, 0.0), 1.0);
        for (cumulant, whole) in self.cumulants.iter().zip(&self.sizes) {
            log += turn * (power * cumulant);
            size += power * whole;
            turn *= Complex64::I;
            power *= t;
        }
        // Roundings of the sum of centres turn the phase.
        let turned = t * (self.terms + 8.0) * UNIT * self.centre_size;
        let error = self.error + self.beyond * power + (self.terms + 64.0) * UNIT * size + turned;
        product.log_modulus += log.re;
        product.phase += log.im;
        product.bound += log.re + error;
        product.relative += error;
        product.size += size;
        product.terms += 1.0;
    }

    fn largest(&self) -> Vec<usize> {
        let mut order = self.variances.clone();
        let most = LARGEST_VARIANCES.min(order.len());
        if most > 0 && most < order.len() {
            order.select_nth_unstable_by(most - 1, |a, b| b.0.total_cmp(&a.0));
        }
        order.into_iter().take(most).map(|(_, place)| place).collect()
    }
}

/// The contour of all steps at a tilt; `None` where this does not apply.
///
/// How far to go and how long a period has to be is found with a sample of the steps, and bounded with all of them.
pub(crate) fn contour(
    composition: &Composition,
    sample: &Composition,
    direction: Direction,
    tilt: f64,
) -> Option<Contour> {
    let mut cumulant_of_sample = Cumulant::new(sample, direction);
    let k = cumulant_of_sample.at(tilt);
    let finite = k.value.is_finite() && k.second.is_finite() && k.first.is_finite();
    if !finite || !(tilt > 0.0) {
        return None;
    }
    let (period, wraps) = period(&mut cumulant_of_sample, tilt, k)?;
    // A little longer, for what is not in the sample.
    let period = 1.25 * period;
    // Copies are far away, so that few steps that cost at least as much mostly bound them well enough.
    let mut cumulant_of_coarse = Cumulant::new(composition.coarse(), direction);
    let epsilon = k.first + payoff(tilt).first;
    let wraps = wraps.map(|(_, slope)| {
        let moved = -slope;
        let bound = |value: f64| wrap(value, (moved - tilt).abs(), period);
        if moved <= 0.0 {
            return (bound(0.0), slope);
        }
        let rough = bound(cumulant_of_coarse.at(moved).value);
        let counts = rough + slope * epsilon - (k.value - tilt * epsilon);
        if counts < negligible(tilt, k) + EXTRA_WRAP_AROUND {
            return (rough, slope);
        }
        (bound(cumulant_step_by_step(composition, direction, moved).value), slope)
    });
    let line = Line { tilt, k, period, wraps, smoothing: Smoothing::default() };
    // The variance is that of the sample: a little farther. Losses with heavy tails need more.
    let mut reach = 1.15;
    for every in [DECAY_STRIDE, 1, 1, 1, 1] {
        if work::left() == 0 {
            return None;
        }
        match contour_up_to(composition, direction, &line, (reach, every)) {
            Inversion::Contour(contour) => return Some(*contour),
            Inversion::TooShort(_) if every > 1 => {}
            Inversion::TooShort(decayed) => reach *= (1.2 / decayed.sqrt()).clamp(1.3, 3.0),
            Inversion::Impossible => return None,
        }
    }
    None
}

fn tilted_nodes(nodes: &[(f64, f64)], series: &StepSeries) -> TiltedNodes {
    let total: f64 = nodes.iter().map(|(mass, _)| mass).sum();
    TiltedNodes {
        mass: nodes.iter().map(|(mass, _)| Complex64::from(mass / total)).collect(),
        loss: nodes.iter().map(|(_, loss)| Complex64::from(loss - series.centre)).collect(),
        error: series.error,
        quadrature: series.quadrature,
        growth: f64::MAX,
    }
}

/// What became of a transform up to some last frequency.
enum Inversion {
    Contour(Box<Contour>),
    /// Only this part of the decay is reached there that is wanted.
    TooShort(f64),
    Impossible,
}

fn contour_up_to(
    composition: &Composition,
    direction: Direction,
    Line { tilt, k, period, wraps, .. }: &Line,
    (reach, every): (f64, usize),
) -> Inversion {
    let (tilt, k, period, wraps) = (*tilt, *k, *period, *wraps);
    let spacing = 2.0 * std::f64::consts::PI / period;
    let wanted = 28.0 + libm::log1p(tilt * tilt) + libm::log1p(k.second.sqrt());
    let count = (reach * (2.0 * wanted / k.second).sqrt() / spacing).ceil().max(16.0);
    if !(count < MOST_FREQUENCIES as f64) {
        return Inversion::Impossible;
    }
    let (count, last) = (count as usize, count * spacing);
    let mut products = vec![CharacteristicProduct::default(); count];
    let mut sums = CumulantSums { decay: vec![0.0; DECAY_BANDS], ..CumulantSums::default() };
    let (mut gaussian, mut without_series, mut one_by_one) = (0.0, Vec::new(), Vec::new());
    // Where t^ORDER e^{-variance t^2/2} is largest.
    let worst = (ORDER as f64 / k.second).sqrt();
    let mut scratch = Scratch::default();
    for (place, (step, n)) in composition.steps().iter().enumerate() {
        if step.sampled == Sampled::Always {
            gaussian += *n as f64 / (step.z * step.z);
            continue;
        }
        let Some(series) = StepSeries::new(*step, direction, tilt, last, &mut scratch) else {
            without_series.push((*step, *n));
            continue;
        };
        let count = *n as f64;
        let modulus_deficits = match place % every {
            0 => scratch.modulus_deficits(&series, last),
            _ => [0.0; DECAY_BANDS],
        };
        sums.add_moment(&series, (count, place), last, modulus_deficits);
        let beyond = StepSeries::BEYOND * count * (worst / series.radius).powi(ORDER as i32);
        let beyond = beyond * (-0.5 * ORDER as f64).exp() * composition.steps().len() as f64;
        if beyond <= BEYOND && last <= SERIES_MARGIN * series.radius {
            sums.add_cumulants(&series, count);
        } else {
            one_by_one.push((*step, count));
        }
    }
    if without_series.len() > MOST_WITHOUT_SERIES
        || without_series.iter().any(|(step, _)| step.z < LEAST_NOISE)
    {
        return Inversion::Impossible;
    }
    let tilted = |(step, n): &(Step, u64)| {
        TiltedStep::new(*step, direction, tilt, PIECES, 0.0).map(|step| (step, *n as f64))
    };
    let Some(without_series) = without_series.iter().map(tilted).collect::<Option<Vec<_>>>() else {
        return Inversion::Impossible;
    };
    let largest_variances =
        sums.largest().into_iter().filter_map(|place| composition.steps().get(place));
    let Some(largest_variances) = largest_variances.map(tilted).collect::<Option<Vec<_>>>() else {
        return Inversion::Impossible;
    };
    let layers = |steps: &[(TiltedStep, f64)], t: f64| -> f64 {
        steps.iter().map(|(step, n)| n * step.decay(t)).sum()
    };
    // From the last frequency on: by the losses of all steps, until the densities of a few suffice for all the rest.
    let (mut from, mut least, mut covered) = (last, f64::INFINITY, false);
    for decay in &sums.decay {
        let known = layers(&without_series, from) + 0.5 * gaussian * from * from * (1.0 - 1e-12);
        let onwards = known + layers(&largest_variances, from);
        if onwards >= least.min(2.0 * wanted) {
            least = least.min(onwards);
            covered = true;
            break;
        }
        least = least.min(known + decay * (1.0 - 1e-9));
        from *= STRIDE;
    }
    if !covered {
        return if every > 1 { Inversion::TooShort(0.0) } else { Inversion::Impossible };
    }
    if least < LEAST_DECAY {
        return Inversion::TooShort(least / wanted);
    }
    let cut = (-least).exp() / last * (1.0 + spacing / last);
    if !(cut <= MOST_CUT_OFF * payoff(tilt).value.exp() / (1.0 + k.second.sqrt())) {
        return Inversion::TooShort(least / wanted);
    }
    // These take the longest, so only now that nothing stands in the way.
    let cost = one_by_one.len() as u64 * count as u64 * (TYPICAL_NODES / work::PRODUCTS);
    if cost > work::left() {
        return Inversion::Impossible;
    }
    for (step, n) in one_by_one {
        let Some(series) = StepSeries::new(step, direction, tilt, last, &mut scratch) else {
            return Inversion::Impossible;
        };
        multiply(&mut products, spacing, &tilted_nodes(scratch.nodes(), &series), n);
    }
    sums.centre_size += without_series.iter().map(|(step, n)| n * step.centre.abs()).sum::<f64>()
        + gaussian * (tilt + 0.5);
    sums.terms += without_series.len() as f64;
    for (index, product) in products.iter_mut().enumerate() {
        sums.multiply(product, index as f64 * spacing);
    }
    for (step, n) in &without_series {
        let Some(nodes) = step.nodes(last) else { return Inversion::Impossible };
        multiply(&mut products, spacing, &nodes, *n);
    }
    let moments = || without_series.iter().map(|(step, n)| n * step.log_moment);
    let gaussian_moment = 0.5 * gaussian * tilt * (tilt + 1.0);
    let size = sums.moment_size + moments().map(f64::abs).sum::<f64>() + gaussian_moment;
    let terms = sums.terms;
    let mut contour = Contour {
        tilt,
        log_moment: sums.log_moment + moments().sum::<f64>() + gaussian_moment,
        rounding: UNIT * (8.0 + terms) * 2.0 * size
            + sums.moment_error
            + without_series.iter().map(|(step, n)| n * step.moment_error).sum::<f64>(),
        centre: sums.centre
            + without_series.iter().map(|(step, n)| n * step.centre).sum::<f64>()
            + gaussian * (tilt + 0.5),
        spacing,
        values: Vec::with_capacity(count),
        error: cut / std::f64::consts::PI,
        variance: 0.0,
        infinite: 0.0,
        wraps,
    };
    contour.fill(&products, gaussian);
    if contour.error.is_finite() {
        Inversion::Contour(Box::new(contour))
    } else {
        Inversion::Impossible
    }
}
