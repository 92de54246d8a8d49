//! A random walk: charges, crashes, branches, merges, restores and lowered budgets in any order.
//!
//! Every charge has a name. After every step the ledger must verify, have every expected charge exactly once,
//! report no smaller epsilon than before, and have no larger budget.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use veilgrad_accounting::Tightest;
use veilgrad_events::{ClipNorm, Epsilon, Event, NoiseStd, Round, SampleRate, Sampling, SumQuery};
use veilgrad_ledger::{Entry, Head, Ledger, Options};

use crate::scratch::{Directory, Found, Random, create, open_run, text};

const FILES: [&str; 3] = ["ledger.db", "ledger.db-wal", "ledger.db.anchor"];

/// A ledger and what is known about it.
struct Branch {
    directory: Directory,
    /// The charges that it must have: names and rounds.
    charges: BTreeMap<String, u64>,
    /// Heads that were published.
    heads: Vec<Head>,
    /// The epsilon and the budget that it last reported.
    epsilon: f64,
    cap: f64,
}

struct Walk {
    branches: Vec<Branch>,
    random: Random,
    names: u64,
    steps: BTreeMap<&'static str, u64>,
}

pub(crate) fn sweep(quick: bool) -> Found {
    let (walks, steps) = if quick { (2, 40) } else { (24, 200) };
    let mut totals: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in 0..walks {
        let mut walk = Walk::begin(seed)?;
        for step in 0..steps {
            walk.step().map_err(|why| format!("walk {seed}, step {step}: {why}"))?;
        }
        for (name, count) in walk.steps {
            *totals.entry(name).or_default() += count;
        }
    }
    let steps: Vec<String> = totals.iter().map(|(name, count)| format!("{count} {name}")).collect();
    println!(
        "walk: {walks} walks, {}; 0 charges lost or doubled, 0 smaller epsilons, 0 larger budgets",
        steps.join(", ")
    );
    Ok(())
}

type Files = Vec<Option<Vec<u8>>>;

impl Branch {
    fn path(&self) -> PathBuf {
        self.directory.ledger()
    }

    fn open(&self) -> Result<Ledger, String> {
        Ledger::open(self.path(), Options::default()).map_err(text)
    }

    fn read(&self) -> Result<Ledger, String> {
        Ledger::read(self.path(), Options::default()).map_err(text)
    }

    fn files(&self) -> Files {
        FILES.iter().map(|name| std::fs::read(self.directory.path().join(name)).ok()).collect()
    }

    fn restore(&self, files: &[&Option<Vec<u8>>]) -> Found {
        let _ = std::fs::remove_file(self.directory.path().join("ledger.db-shm"));
        for (name, bytes) in FILES.iter().zip(files) {
            let path = self.directory.path().join(name);
            match bytes {
                Some(bytes) => std::fs::write(path, bytes).map_err(text)?,
                None => drop(std::fs::remove_file(path)),
            }
        }
        Ok(())
    }

    /// Checks the ledger; `maybe` is a charge that may have been lost, because nothing was released for it.
    fn check(&mut self, maybe: Option<&(String, u64)>) -> Found {
        let ledger = self.read()?;
        let found = charges(&ledger)?;
        if let Some((name, rounds)) = maybe
            && found.contains_key(name)
        {
            self.charges.insert(name.clone(), *rounds);
        }
        if found != self.charges {
            return Err(format!("{found:?} charged, and {:?} expected", self.charges));
        }
        let dataset = ledger.state().datasets().get("data").ok_or("the dataset is gone")?;
        let epsilon = dataset.price(&Tightest)?;
        let cap = dataset.budget.epsilon.get();
        if epsilon < self.epsilon || cap > self.cap {
            return Err(format!(
                "epsilon {epsilon} of {cap} after {} of {}",
                self.epsilon, self.cap
            ));
        }
        (self.epsilon, self.cap) = (epsilon, cap);
        for head in &self.heads {
            ledger.contains(head).map_err(text)?;
        }
        self.heads.push(ledger.head().clone());
        // The last eight are enough.
        if self.heads.len() > 8 {
            self.heads.remove(0);
        }
        Ok(())
    }
}

/// All charges of a ledger by name; each must occur once.
fn charges(ledger: &Ledger) -> Result<BTreeMap<String, u64>, String> {
    let (mut found, mut double) = (BTreeMap::new(), BTreeSet::new());
    ledger
        .visit_rows(&mut |_, bytes, _| {
            let mut entry =
                Entry::from_bytes(bytes).map_err(veilgrad_ledger::StoreError::Damaged)?;
            if let Entry::Import { entry: inner, .. } = entry {
                entry = *inner;
            }
            if let Entry::Run { event: Event::Reserve(reservation), .. } = entry {
                let charge = reservation.charge;
                for query in charge.round.queries() {
                    let name = query.group().to_owned();
                    if found.insert(name.clone(), charge.count).is_some() {
                        double.insert(name);
                    }
                }
            }
            Ok(())
        })
        .map_err(text)?;
    let counted: u64 = crate::scratch::charged(ledger);
    if !double.is_empty() || counted != found.values().sum::<u64>() {
        return Err(format!("{double:?} charged twice, or {counted} rounds are not those of rows"));
    }
    Ok(found)
}

impl Walk {
    fn begin(seed: u64) -> Result<Self, String> {
        let directory = Directory::in_memory()?;
        drop(create(&directory.ledger(), 50.0)?);
        let first = Branch {
            directory,
            charges: BTreeMap::new(),
            heads: Vec::new(),
            epsilon: 0.0,
            cap: 50.0,
        };
        Ok(Self { branches: vec![first], random: Random(seed), names: 0, steps: BTreeMap::new() })
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.random.next() % limit.max(1) as u64) as usize
    }

    fn step(&mut self) -> Found {
        let here = self.below(self.branches.len());
        let (name, maybe) = match self.below(16) {
            0..=4 => ("charges", self.charge(here, false)?),
            5..=8 => ("crashes", self.charge(here, true)?),
            9 => ("lowered budgets", self.tighten(here)?),
            10 | 11 => ("branches", self.branch(here)?),
            12..=14 => ("merges", self.merge(here)?),
            _ => ("rollbacks noticed", self.roll_back(here)?),
        };
        *self.steps.entry(name).or_default() += 1;
        let branch = self.branches.get_mut(here).ok_or("no branch")?;
        branch.check(maybe.as_ref()).map_err(|why| format!("{name}: {why}"))
    }

    /// Charges one to three times. With a crash, files from before and after the last charge are mixed, so that it may
    /// or may not be there.
    fn charge(&mut self, here: usize, crash: bool) -> Result<Option<(String, u64)>, String> {
        let charges = 1 + self.below(3);
        let (long, close) = (self.below(6) == 0, self.below(3) == 0);
        let mixture = [self.below(2), self.below(2)];
        let mut plans = Vec::new();
        for _ in 0..charges {
            // Two kinds, so that some consecutive rounds are joined; some are too long for a slot of the anchor.
            let (q, z) = if self.below(2) == 0 { (0.01, 1.0) } else { (0.02, 2.0) };
            self.names += 1;
            let mut name = format!("c{}", self.names);
            if long {
                name.push_str(&"x".repeat(40_000));
            }
            plans.push((name, q, z, 1 + self.below(5) as u64));
        }
        let branch = self.branches.get_mut(here).ok_or("no branch")?;
        let mut run = open_run(branch.open()?)?;
        let mut last = None;
        let mut before = branch.files();
        for (name, q, z, rounds) in plans {
            before = branch.files();
            match run.reserve(&named_round(&name, q, z)?, rounds) {
                Ok(_) => {
                    branch.charges.insert(name.clone(), rounds);
                    last = Some((name, rounds));
                }
                Err(veilgrad_events::LedgerError::BudgetExhausted(_)) => last = None,
                Err(error) => return Err(error.to_string()),
            }
        }
        if !crash {
            if close {
                run.close().map_err(text)?;
            }
            return Ok(None);
        }
        let after = branch.files();
        let Some(last) = last else { return Ok(None) };
        let long = last.0.len() > 1000;
        // The run was open, so these files are what a killed process leaves.
        let [database, anchor] = mixture;
        // A charge that does not fit into the anchor is written to the database first.
        let database = if long { database.max(anchor) } else { database };
        let versions = [&before, &after];
        drop(run);
        let chosen = [versions[database], versions[database], versions[anchor]];
        let files: Vec<_> =
            chosen.iter().zip(0..).filter_map(|(files, i)| files.get::<usize>(i)).collect();
        branch.restore(&files)?;
        branch.charges.remove(&last.0);
        Ok(Some(last))
    }

    fn tighten(&mut self, here: usize) -> Result<Option<(String, u64)>, String> {
        let share = 0.8 + 0.01 * self.below(40) as f64;
        let branch = self.branches.get_mut(here).ok_or("no branch")?;
        let cap = branch.cap * share;
        let result = branch.open()?.tighten("data", Epsilon::new(cap).map_err(text)?);
        if result.is_ok() != (share <= 1.0) {
            return Err(format!("a budget of {} was set to {cap}: {result:?}", branch.cap));
        }
        if result.is_ok() {
            branch.cap = cap;
        }
        Ok(None)
    }

    /// Starts another branch of the ledger, from its export or from a copy of its files.
    fn branch(&mut self, here: usize) -> Result<Option<(String, u64)>, String> {
        let copied = self.below(2) == 0;
        let branch = self.branches.get(here).ok_or("no branch")?;
        let directory = Directory::in_memory()?;
        if copied {
            for name in FILES {
                let _ =
                    std::fs::copy(branch.directory.path().join(name), directory.path().join(name));
            }
        } else {
            let export = branch.read()?.export().map_err(text)?;
            drop(Ledger::restore(directory.ledger(), &export, Options::default()).map_err(text)?);
        }
        let new = Branch {
            directory,
            charges: branch.charges.clone(),
            heads: branch.heads.clone(),
            epsilon: branch.epsilon,
            cap: branch.cap,
        };
        if self.branches.len() < 4 {
            self.branches.push(new);
        } else {
            let replaced = self.below(4);
            if replaced != here {
                self.branches[replaced] = new;
            }
        }
        Ok(None)
    }

    /// Imports another branch; everything in it must be charged here exactly once.
    fn merge(&mut self, here: usize) -> Result<Option<(String, u64)>, String> {
        let there = self.below(self.branches.len());
        let other = self.branches.get(there).ok_or("no branch")?;
        let (export, charges, cap) =
            (other.read()?.export().map_err(text)?, other.charges.clone(), other.cap);
        let branch = self.branches.get_mut(here).ok_or("no branch")?;
        let mut ledger = branch.open()?;
        ledger.import(&export).map_err(text)?;
        let again = ledger.import(&export).map_err(text)?;
        if again.charged != 0 {
            return Err(format!("{} rows were imported twice", again.charged));
        }
        branch.charges.extend(charges);
        if cap < branch.cap {
            branch.cap = cap;
        }
        Ok(None)
    }

    /// Restores older versions of all files; a published head must detect it.
    fn roll_back(&mut self, here: usize) -> Result<Option<(String, u64)>, String> {
        self.names += 1;
        let name = format!("c{}", self.names);
        let branch = self.branches.get_mut(here).ok_or("no branch")?;
        let before = branch.files();
        // Opening may complete the write of a crashed process, which does not matter here.
        let mut run = open_run(branch.open()?)?;
        let charged = run.reserve(&named_round(&name, 0.01, 1.0)?, 1).is_ok();
        let head = run.store().ledger().head().clone();
        let after = branch.files();
        drop(run);
        branch.restore(&before.iter().collect::<Vec<_>>())?;
        if branch.read().is_ok_and(|ledger| ledger.contains(&head).is_ok()) {
            return Err("a rollback was not noticed".to_owned());
        }
        branch.restore(&after.iter().collect::<Vec<_>>())?;
        if charged {
            branch.charges.insert(name, 1);
        }
        Ok(None)
    }
}

/// A round whose group has this name.
fn named_round(name: &str, q: f64, z: f64) -> Result<Round, String> {
    let clip = ClipNorm::new(1.0).map_err(text)?;
    let query = SumQuery::new(name, clip, NoiseStd::new(z).map_err(text)?);
    let sampling = Sampling::Poisson { rate: SampleRate::new(q).map_err(text)? };
    Round::new(sampling, vec![query]).map_err(text)
}
