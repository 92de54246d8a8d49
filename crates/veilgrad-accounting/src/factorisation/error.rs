//! The error of a strategy in the parameters of a model, and its derivatives, for any learning rates.
//!
//! Noise of a strategy after momentum is `v = N / f` as power series, with `f = c (1 - beta x)` and independent N of variance 1: an
//! autoregressive process `v_t = N_t - f_1 v_{t-1} - ... - f_b v_{t-b}`. A round adds `gain_t v_t` to parameters, after it
//! has multiplied them by `keep_t`. The learning rate changes from round to round, so that the matrix from N to parameters
//! is not Toeplitz, but the sum of their variances `V_t` still takes O(T b) operations, exactly. With the covariances
//! `r_t[j]` of `v_t` and `v_{t-j}`, and `k_t[j]` of the parameters after round t and `v_{t-j}`, for `j < b`:
//!
//! - `r_t[j] = r_{t-1}[j] + q_t q_{t-j}`, where `q = 1 / f`;
//! - the covariance of `v_t` and the parameters before round t is `g_t = -f_1 k_{t-1}[0] - ... - f_b k_{t-1}[b-1]`, since they do
//!   not depend on `N_t`;
//! - `V_t = keep^2 V_{t-1} + 2 keep gain g_t + gain^2 r_t[0]`;
//! - `k_t[0] = keep g_t + gain r_t[0]`, and `k_t[j] = keep k_{t-1}[j-1] + gain r_t[j]`.
//!
//! The derivatives are those of this recursion, from its end to its beginning.

use super::series::{divide, dot};

/// How a round enters parameters: before it they are multiplied by `keep`, then `gain v` is added; what is seen of them after
/// it has `ahead v` in addition, which the next round takes back (Nesterov momentum).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Entry {
    pub(super) keep: f64,
    pub(super) gain: f64,
    pub(super) ahead: f64,
}

/// The sum of the variances of a parameter after each round, and what its derivatives need.
pub(super) struct SquaredError<'a> {
    rounds: &'a [Entry],
    /// `f_1, ..., f_b`.
    feedback: Vec<f64>,
    /// `q_0, ..., q_{T-1}` after b - 1 zeros, so that every window of b ends with one of them.
    response: Vec<f64>,
    /// `k_{-1} = 0, k_0, ..., k_{T-1}`, b numbers each.
    covariances: Vec<f64>,
    pub(super) sum: f64,
}

impl<'a> SquaredError<'a> {
    /// The error of a strategy with entries `c`, which begin with 1.
    pub(super) fn new(rounds: &'a [Entry], c: &[f64], momentum: f64) -> Self {
        let bands = c.len();
        let shifted = c.iter().map(|c| momentum * c);
        let later = c.iter().skip(1).copied().chain([0.0]);
        let feedback: Vec<f64> = later.zip(shifted).map(|(c, shifted)| c - shifted).collect();
        let mut response = vec![0.0; bands - 1 + rounds.len()];
        if let Some([first, ..]) = response.get_mut(bands - 1..) {
            *first = 1.0;
        }
        divide(response.get_mut(bands - 1..).unwrap_or_default(), &feedback);
        let mut covariances = vec![0.0; (rounds.len() + 1) * bands];
        let (mut own, mut variance, mut sum) = (vec![0.0; bands], 0.0, 0.0);
        let mut rows = covariances.chunks_exact_mut(bands);
        let mut before: &[f64] = rows.next().unwrap_or_default();
        for ((round, window), row) in rounds.iter().zip(response.windows(bands)).zip(rows) {
            let Entry { keep, gain, ahead } = *round;
            let newest = window.last().copied().unwrap_or(0.0);
            for (own, q) in own.iter_mut().zip(window.iter().rev()) {
                *own += newest * q;
            }
            let with_parameters = -dot(&feedback, before);
            let shifted = std::iter::once(&with_parameters).chain(before);
            for ((k, shifted), own) in row.iter_mut().zip(shifted).zip(&own) {
                *k = keep * shifted + gain * own;
            }
            let (r, k) = (first(&own), first(row));
            variance = keep * keep * variance + gain * (2.0 * keep * with_parameters + gain * r);
            sum += variance + ahead * (2.0 * k + ahead * r);
            before = row;
        }
        Self { rounds, feedback, response, covariances, sum }
    }

    /// The derivatives of the sum by the entries `c_1, ..., c_{b-1}` of the strategy.
    pub(super) fn derivatives(&self, momentum: f64) -> Vec<f64> {
        let Self { rounds, feedback, response, covariances, .. } = self;
        let bands = feedback.len();
        // The derivatives by V_t, k_t, r_t, q_t and f.
        let (mut by_variance, mut by_k, mut by_r) = (0.0, vec![0.0; bands], vec![0.0; bands]);
        let (mut by_q, mut by_f) = (vec![0.0; response.len()], vec![0.0; bands]);
        let windows = response.windows(bands).zip(covariances.chunks_exact(bands));
        for (t, (round, (window, before))) in rounds.iter().zip(windows).enumerate().rev() {
            let Entry { keep, gain, ahead } = *round;
            by_variance += 1.0;
            if let (Some(by_k), Some(by_r)) = (by_k.first_mut(), by_r.first_mut()) {
                *by_k += 2.0 * ahead;
                *by_r += ahead * ahead + gain * gain * by_variance;
            }
            for (by_r, by_k) in by_r.iter_mut().zip(&by_k) {
                *by_r += gain * by_k;
            }
            let newest = window.last().copied().unwrap_or(0.0);
            let mut by_newest = 0.0;
            let window_of_q = by_q.get_mut(t..t + bands).unwrap_or_default();
            for ((by_q, q), by_r) in
                window_of_q.iter_mut().rev().zip(window.iter().rev()).zip(&by_r)
            {
                *by_q += by_r * newest;
                by_newest += by_r * q;
            }
            if let Some(last) = window_of_q.last_mut() {
                *last += by_newest;
            }
            let by_g = keep * (2.0 * gain * by_variance + first(&by_k));
            for (by_f, k) in by_f.iter_mut().zip(before) {
                *by_f -= by_g * k;
            }
            by_k.rotate_left(1);
            if let Some(last) = by_k.last_mut() {
                *last = 0.0;
            }
            for (by_k, f) in by_k.iter_mut().zip(feedback) {
                *by_k = keep * *by_k - f * by_g;
            }
            by_variance *= keep * keep;
        }
        // q = 1 / f: by every coefficient through all later ones, and from there by f.
        let mut through: Vec<f64> = by_q.into_iter().skip(bands - 1).rev().collect();
        divide(&mut through, feedback);
        // Every window ends with q_{t-1}.
        for (through, window) in through.iter().rev().skip(1).zip(response.windows(bands)) {
            for (by_f, q) in by_f.iter_mut().zip(window.iter().rev()) {
                *by_f -= through * q;
            }
        }
        // f_i = c_i - beta c_{i-1}.
        by_f.iter().zip(by_f.iter().skip(1)).map(|(own, next)| own - momentum * next).collect()
    }
}

fn first(values: &[f64]) -> f64 {
    values.first().copied().unwrap_or(0.0)
}
