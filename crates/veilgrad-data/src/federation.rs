//! Made-up federations of public examples, for experiments.

use std::num::NonZeroU32;

/// How the examples of a public dataset are dealt out to made-up users.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Partition {
    /// At random: all users have the same distribution of classes.
    Uniform,
    /// Each user gets the examples of about this many classes (the shards of McMahan et al. 2017).
    ByClass {
        /// About how many classes a user has.
        classes: NonZeroU32,
    },
    /// The classes of each user have proportions from a symmetric Dirichlet distribution (Hsu et al. 2019).
    Dirichlet {
        /// The concentration: near 0, a user has few classes; when it is large, all users are alike.
        concentration: f64,
    },
}

impl Partition {
    /// Deals out examples with these classes to users, about equally many to each. Returns the examples of each user; every
    /// example has one user. The same seed gives the same users.
    ///
    /// **For experiments with public data.** Who gets an example depends on the others: no user is a person, and a guarantee
    /// for these users protects nobody.
    ///
    /// # Example
    /// ```
    /// use std::num::NonZeroU32;
    /// use veilgrad_data::Partition;
    ///
    /// let classes: Vec<f32> = (0..60).map(|example| (example % 3) as f32).collect();
    /// let users = Partition::Dirichlet { concentration: 0.5 }
    ///     .deal(&classes, NonZeroU32::new(10).ok_or("zero")?, 1);
    /// assert_eq!(users.iter().map(Vec::len).sum::<usize>(), 60);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn deal(self, classes: &[f32], users: NonZeroU32, seed: u64) -> Vec<Vec<u32>> {
        let mut random = PublicRandom(seed);
        let users = users.get() as usize;
        let mut order: Vec<u32> = (0..).take(classes.len()).collect();
        random.shuffle(&mut order);
        match self {
            Self::Uniform => shards(&order, users, 1, &mut random),
            Self::ByClass { classes: per_user } => {
                order.sort_by(|one, other| {
                    let class = |example: &u32| classes.get(*example as usize).copied();
                    let order = class(one).partial_cmp(&class(other));
                    order.unwrap_or(std::cmp::Ordering::Equal)
                });
                shards(&order, users, per_user.get() as usize, &mut random)
            }
            Self::Dirichlet { concentration } => {
                let pools = pools(&order, classes);
                dirichlet(pools, order.len(), users, concentration, &mut random)
            }
        }
    }
}

/// The `part`-th of `parts` parts of about equal size of a list.
fn part(list: &[u32], part: usize, parts: usize) -> &[u32] {
    let place = |part: usize| (part as u128 * list.len() as u128 / parts.max(1) as u128) as usize;
    list.get(place(part)..place(part + 1)).unwrap_or_default()
}

/// Cuts a list into `per_user` shards for each user, and deals the shards out at random.
fn shards(
    order: &[u32],
    users: usize,
    per_user: usize,
    random: &mut PublicRandom,
) -> Vec<Vec<u32>> {
    let count = users.saturating_mul(per_user);
    let mut numbers: Vec<u32> = (0..).take(count).collect();
    random.shuffle(&mut numbers);
    let user = |numbers: &[u32]| {
        let mut numbers = numbers.to_vec();
        numbers.sort_unstable();
        numbers.iter().flat_map(|shard| part(order, *shard as usize, count)).copied().collect()
    };
    numbers.chunks(per_user.max(1)).map(user).collect()
}

/// The examples of each class, in this order. Examples of no class are a class of their own.
fn pools(order: &[u32], classes: &[f32]) -> Vec<Vec<u32>> {
    let mut pools: std::collections::BTreeMap<u32, Vec<u32>> = std::collections::BTreeMap::new();
    for example in order {
        let class = classes.get(*example as usize).map_or(0, |class| class.to_bits());
        pools.entry(class).or_default().push(*example);
    }
    pools.into_values().collect()
}

/// Each user draws proportions of classes, then its examples one by one from the pools that are not empty.
fn dirichlet(
    mut pools: Vec<Vec<u32>>,
    examples: usize,
    users: usize,
    concentration: f64,
    random: &mut PublicRandom,
) -> Vec<Vec<u32>> {
    let place = |user: usize| (user as u128 * examples as u128 / users.max(1) as u128) as usize;
    let mut federation = Vec::with_capacity(users);
    for user in 0..users {
        // A tiny share for each class, so that there is one to draw from when the others are empty.
        let shares: Vec<f64> =
            pools.iter().map(|_| random.gamma(concentration) + f64::MIN_POSITIVE).collect();
        let mut own = Vec::new();
        for _ in place(user)..place(user + 1) {
            let left = || pools.iter().zip(&shares).filter(|(pool, _)| !pool.is_empty());
            let total: f64 = left().map(|(_, share)| share).sum();
            let mut point = random.unit() * total;
            let mut chosen = None;
            for (index, (pool, share)) in pools.iter().zip(&shares).enumerate() {
                if !pool.is_empty() {
                    chosen = Some(index);
                    point -= share;
                    if point < 0.0 {
                        break;
                    }
                }
            }
            let example = chosen.and_then(|index| pools.get_mut(index)).and_then(Vec::pop);
            own.extend(example);
        }
        federation.push(own);
    }
    federation
}

/// Pseudorandom numbers from a public seed (SplitMix64). Never used for noise or samples.
struct PublicRandom(u64);

impl PublicRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Fisher and Yates. The bias of the remainder is below 2^-32.
    fn shuffle(&mut self, values: &mut [u32]) {
        for last in (1..values.len()).rev() {
            let other = (self.next() % (last as u64 + 1)) as usize;
            values.swap(last, other);
        }
    }

    /// Box and Muller.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// A gamma variable with this shape and scale 1 (Marsaglia and Tsang 2000).
    fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            return self.gamma(shape + 1.0) * (1.0 - self.unit()).powf(1.0 / shape);
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            let u = 1.0 - self.unit();
            if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn number(n: u32) -> NonZeroU32 {
        NonZeroU32::new(n).unwrap()
    }

    fn classes(count: usize) -> Vec<f32> {
        (0..count).map(|example| (example * 7 % 10) as f32).collect()
    }

    /// The mean number of classes of a user.
    fn mean_classes(federation: &[Vec<u32>], classes: &[f32]) -> f64 {
        let of = |user: &Vec<u32>| {
            let of_user = user.iter().map(|example| classes[*example as usize] as u32);
            of_user.collect::<HashSet<_>>().len() as f64
        };
        federation.iter().map(of).sum::<f64>() / federation.len() as f64
    }

    #[test]
    fn every_example_has_one_user_and_users_are_about_equal() {
        let mut labels = classes(1003);
        labels[5] = f32::NAN;
        for how in [
            Partition::Uniform,
            Partition::ByClass { classes: number(2) },
            Partition::Dirichlet { concentration: 0.1 },
            Partition::Dirichlet { concentration: 100.0 },
        ] {
            let federation = how.deal(&labels, number(100), 3);
            assert_eq!(federation.len(), 100);
            let mut all = federation.concat();
            all.sort_unstable();
            assert_eq!(all, (0..1003).collect::<Vec<_>>(), "{how:?}");
            // Shards differ by one example, and a user has up to two of them.
            assert!(federation.iter().all(|user| (9..=13).contains(&user.len())), "{how:?}");
            assert_eq!(federation, how.deal(&labels, number(100), 3));
            assert_ne!(federation, how.deal(&labels, number(100), 4));
        }
    }

    #[test]
    fn users_have_as_few_classes_as_was_asked_for() {
        let labels = classes(2000);
        let mean = |how: Partition| mean_classes(&how.deal(&labels, number(100), 1), &labels);
        // Twenty examples of ten classes at random: 10 (1 - 0.9^20) = 8.8 classes.
        assert!((mean(Partition::Uniform) - 8.8).abs() < 0.3);
        assert!((1.0..=1.1).contains(&mean(Partition::ByClass { classes: number(1) })));
        assert!((1.7..=2.1).contains(&mean(Partition::ByClass { classes: number(2) })));
        let [few, some, many] =
            [0.05, 0.5, 1000.0].map(|concentration| mean(Partition::Dirichlet { concentration }));
        assert!(few < 3.0, "{few}");
        assert!((3.5..7.0).contains(&some), "{some}");
        // The last users draw from the classes that are left.
        assert!((many - 8.8).abs() < 0.5, "{many}");
    }

    #[test]
    fn gamma_variables_have_their_mean_and_variance() {
        let mut random = PublicRandom(7);
        for shape in [0.1, 0.5, 1.0, 3.0, 40.0] {
            let draws: Vec<f64> = (0..100_000).map(|_| random.gamma(shape)).collect();
            let mean = draws.iter().sum::<f64>() / 1e5;
            let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e5;
            // The seed is fixed; both are within five standard errors.
            assert!((mean - shape).abs() < 5.0 * (shape / 1e5).sqrt(), "{shape}: {mean}");
            assert!((variance / shape - 1.0).abs() < 0.1, "{shape}: {variance}");
        }
    }

    #[test]
    fn more_users_than_examples_leave_some_without() {
        for how in [Partition::Uniform, Partition::Dirichlet { concentration: 1.0 }] {
            let federation = how.deal(&classes(7), number(10), 1);
            assert_eq!((federation.len(), federation.concat().len()), (10, 7));
        }
        assert_eq!(Partition::Uniform.deal(&[], number(3), 1), vec![Vec::<u32>::new(); 3]);
    }
}
