//! Tests whether noise has the distribution of `floor(2^k Z)`.

use crate::{Check, normal_probability, upper_tail};

/// Statistics of many samples with one exponent. Samples are added chunk by chunk, so a billion need
/// little memory.
pub struct Battery {
    k: u8,
    samples: u64,
    /// Counts of `floor(2^cell_bits Z)`, for |Z| < 9.
    cells: Vec<u64>,
    cell_bits: u8,
    /// Sums of the powers 1 to 6.
    powers: [f64; 6],
    /// Counts of each lowest byte, and of each of the lowest 16 bits being set: of the value and of
    /// the magnitude. (A negative value is the complement of its magnitude, so a stuck bit in one of
    /// them looks random in the other.)
    low_bytes: [Vec<u64>; 2],
    bits: [[u64; 16]; 2],
    /// Per lag: the sums of products of values, and of products of squares minus 1.
    lags: Vec<(usize, f64, f64, u64)>,
    /// Counts beyond 4, 5, 6 and 7 standard deviations.
    tails: [u64; 4],
    /// The sum of the sign times the magnitude minus its mean.
    sign_and_size: f64,
    previous: Vec<f64>,
}

/// Distances between coordinates whose independence is tested: neighbours, and the sizes of
/// vectors, chunks and blocks in the implementation.
const LAGS: [usize; 7] = [1, 2, 3, 64, 511, 512, 4096];

impl Battery {
    /// An empty battery for exponent `k`.
    #[must_use]
    pub fn new(k: u8) -> Self {
        let cell_bits = k.min(8);
        Self {
            k,
            samples: 0,
            cells: vec![0; 18 << cell_bits],
            cell_bits,
            powers: [0.0; 6],
            low_bytes: [vec![0; 256], vec![0; 256]],
            bits: [[0; 16]; 2],
            lags: LAGS.iter().map(|lag| (*lag, 0.0, 0.0, 0)).collect(),
            tails: [0; 4],
            sign_and_size: 0.0,
            previous: Vec::new(),
        }
    }

    /// Adds samples: consecutive coordinates of one vector.
    pub fn add(&mut self, samples: &[i64]) {
        let unit = 1.0 / (1u64 << self.k) as f64;
        let mean_size = (2.0 / std::f64::consts::PI).sqrt();
        let half = self.cells.len() as i64 / 2;
        for sample in samples {
            let cell = (sample >> (self.k - self.cell_bits)) + half;
            let cell = cell.clamp(0, 2 * half - 1) as usize;
            self.cells[cell] += 1;
            for (form, integer) in [*sample, sample ^ (sample >> 63)].into_iter().enumerate() {
                self.low_bytes[form][(integer & 0xff) as usize] += 1;
                for (bit, count) in self.bits[form].iter_mut().enumerate() {
                    *count += (integer >> bit & 1) as u64;
                }
            }
            let x = (*sample as f64 + 0.5) * unit;
            let mut power = 1.0;
            for sum in &mut self.powers {
                power *= x;
                *sum += power;
            }
            for (threshold, count) in [4.0, 5.0, 6.0, 7.0].into_iter().zip(&mut self.tails) {
                *count += u64::from(x.abs() > threshold);
            }
            self.sign_and_size += x.signum() * (x.abs() - mean_size);
        }
        self.samples += samples.len() as u64;
        // Lags reach back into the previous chunk.
        let start = self.previous.len();
        self.previous.extend(samples.iter().map(|sample| (*sample as f64 + 0.5) * unit));
        for (lag, products, squares, count) in &mut self.lags {
            for index in start.max(*lag)..self.previous.len() {
                let (a, b) = (self.previous[index], self.previous[index - *lag]);
                *products += a * b;
                *squares += (a * a - 1.0) * (b * b - 1.0);
                *count += 1;
            }
        }
        let keep = self.previous.len().saturating_sub(LAGS[LAGS.len() - 1]);
        self.previous.drain(..keep);
    }

    /// Adds the statistics of another battery (without lags between the two).
    pub fn merge(&mut self, other: &Self) {
        self.samples += other.samples;
        let add = |mine: &mut [u64], theirs: &[u64]| {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += theirs);
        };
        add(&mut self.cells, &other.cells);
        for form in 0..2 {
            add(&mut self.low_bytes[form], &other.low_bytes[form]);
            add(&mut self.bits[form], &other.bits[form]);
        }
        add(&mut self.tails, &other.tails);
        self.powers.iter_mut().zip(other.powers).for_each(|(mine, theirs)| *mine += theirs);
        self.sign_and_size += other.sign_and_size;
        for (mine, theirs) in self.lags.iter_mut().zip(&other.lags) {
            mine.1 += theirs.1;
            mine.2 += theirs.2;
            mine.3 += theirs.3;
        }
        self.previous.clear();
    }

    /// All checks that the grid is fine enough for.
    #[must_use]
    pub fn checks(&self) -> Vec<Check> {
        let n = self.samples as f64;
        let name = |what: &str| format!("k = {}: {what}", self.k);
        let mut checks = Vec::new();

        let half = self.cells.len() as i64 / 2;
        let width = 1.0 / (1u64 << self.cell_bits) as f64;
        let expected: Vec<f64> = (-half..half)
            .map(|cell| n * normal_probability(cell as f64 * width, (cell + 1) as f64 * width))
            .collect();
        checks.push(Check::chi_square(name("cells"), &self.cells, &expected));

        // The largest distance of the distribution functions at cell borders. Its tail probability is at most
        // 2 exp(-2 n D^2) (Massart 1990).
        let (mut distance, mut difference) = (0f64, 0f64);
        for (count, expected) in self.cells.iter().zip(&expected) {
            difference += *count as f64 - expected;
            distance = distance.max(difference.abs());
        }
        let tail = (2.0 * (-2.0 * distance * distance / n).exp()).min(1.0);
        checks.push(Check { name: name("Kolmogorov-Smirnov"), tail });

        // The moments of the midpoints of grid cells are those of a normal variable up to 4^-k.
        if self.k >= 20 {
            let moment = |m: u32| match m {
                m if m % 2 == 1 => 0.0,
                m => (1..m).step_by(2).map(f64::from).product::<f64>(),
            };
            // Sums of high powers need many samples before their tails are nearly normal.
            let needed = [1e4, 1e4, 1e6, 1e6, 1e7, 1e7];
            for ((m, sum), _) in (1u32..).zip(self.powers).zip(needed).filter(|(_, e)| n >= *e) {
                let variance = moment(2 * m) - moment(m) * moment(m);
                let deviations = (sum / n - moment(m)) / (variance / n).sqrt();
                checks.push(Check::by_deviations(name(&format!("moment {m}")), deviations));
            }
            let spread = (1.0 - 2.0 / std::f64::consts::PI).sqrt();
            let deviations = self.sign_and_size / (spread * n.sqrt());
            checks.push(Check::by_deviations(name("sign and size"), deviations));
            for (threshold, count) in [4.0, 5.0, 6.0, 7.0].into_iter().zip(self.tails) {
                let what = name(&format!("beyond {threshold} standard deviations"));
                checks.push(Check::poisson(what, count, n * 2.0 * upper_tail(threshold)));
            }
            // The shape of each tail, in pieces of a quarter.
            let quarter = (1usize << self.cell_bits) / 4;
            let tail_counts = |side: &[u64]| {
                let pieces = side[4 * 4 * quarter..].chunks(quarter);
                pieces.map(|cells| cells.iter().sum()).collect::<Vec<u64>>()
            };
            let expected: Vec<f64> = (16..36u32)
                .map(|piece| f64::from(piece) / 4.0)
                .map(|x| n * normal_probability(x, x + 0.25))
                .collect();
            let right = tail_counts(&self.cells[half as usize..]);
            let mirrored: Vec<u64> = self.cells[..half as usize].iter().rev().copied().collect();
            checks.push(Check::chi_square(name("right tail"), &right, &expected));
            checks.push(Check::chi_square(name("left tail"), &tail_counts(&mirrored), &expected));
            for (form, form_name) in ["value", "magnitude"].into_iter().enumerate() {
                for (bit, count) in self.bits[form].iter().enumerate() {
                    let deviations = (*count as f64 - n / 2.0) / (n / 4.0).sqrt();
                    let what = name(&format!("bit {bit} of the {form_name}"));
                    checks.push(Check::by_deviations(what, deviations));
                }
                let what = name(&format!("lowest byte of the {form_name}"));
                checks.push(Check::chi_square(what, &self.low_bytes[form], &[n / 256.0; 256]));
            }
            for (lag, products, squares, count) in &self.lags {
                let root = (*count as f64).sqrt();
                if root >= 1e3 {
                    let what = |statistic: &str| name(&format!("{statistic} at distance {lag}"));
                    checks.push(Check::by_deviations(what("correlation"), products / root));
                    let squares = squares / (2.0 * root);
                    checks.push(Check::by_deviations(what("correlation of squares"), squares));
                }
            }
        }
        checks
    }
}
