//! The examples in the `--help` of every command.

/// Examples, below their heading.
macro_rules! examples {
    ($($line:literal),+ $(,)?) => {
        concat!("Examples:", $("\n  ", $line),+)
    };
}

pub(crate) const ALL: &str = concat!(
    "Examples:\n",
    "  veilgrad train examples/mnist-eps3.toml\n",
    "  veilgrad plan --records 60000 --batch 256 --epochs 60 --delta 1e-5 --epsilon 3\n",
    "  veilgrad statement runs/mnist-eps3\n\n",
    "Exit codes: 0 ok; 1 failure; 2 usage; 3 the budget would be exceeded, nothing was run; 4 the ledger is refused or\n",
    "damaged; 5 a data file is malformed as a whole; 6 the ledger is busy, nothing is lost; 7 no answer, with the reason\n",
    "(also with --json); 8 an audit contradicts the claim; 130 interrupted, ledger and checkpoint in order.",
);
pub(crate) const INIT: &str = examples!(
    "veilgrad init visits.csv --public-sample public.csv --label readmitted --records 500 --epsilon 4",
    "veilgrad init visits.csv --label readmitted --classes no,yes --numeric age=0..100 --records 500 --epsilon 4 -o visits.toml",
);
pub(crate) const TRAIN: &str = examples!(
    "veilgrad train examples/mnist-eps3.toml",
    "veilgrad train examples/mnist-eps3.toml --epsilon 1 --out runs/eps1 --ledger mnist.db",
    "veilgrad train examples/mnist-eps3.toml --resume",
);
pub(crate) const TUNE: &str = examples!(
    "veilgrad tune examples/mnist-tune.toml --vary train.optimizer.lr=0.25,0.5,1,2 --mean-runs 5",
    "veilgrad tune examples/mnist-eps3.toml --vary train.optimizer.lr=0.3,0.5,0.8 --mean-runs 3 --distribution geometric",
);
pub(crate) const FINISH: &str = examples!("veilgrad finish runs/mnist-eps3");
pub(crate) const AUDIT: &str = examples!(
    "veilgrad audit",
    "veilgrad audit examples/mnist-eps3.toml --canaries 5000 --ledger mnist.db",
);
pub(crate) const CHECK: &str = examples!(
    "veilgrad check examples/tabular.toml",
    "veilgrad check examples/tabular.toml --show-rows",
);
pub(crate) const PREDICT: &str = examples!(
    "veilgrad predict runs/tabular/model.safetensors examples/tabular/visits.csv",
    "veilgrad predict runs/tabular/model.safetensors examples/tabular/visits.csv --probabilities --id person",
    "veilgrad predict runs/mnist-eps3/model.safetensors data/mnist/t10k-images-idx3-ubyte.gz --json",
);
pub(crate) const EVALUATE: &str = examples!(
    "veilgrad evaluate runs/tabular/model.safetensors public.csv --html evaluation.html",
    "veilgrad evaluate runs/mnist-eps3/model.safetensors data/mnist/t10k-images-idx3-ubyte.gz --labels data/mnist/t10k-labels-idx1-ubyte.gz --json",
);
pub(crate) const EXPORT: &str =
    examples!("veilgrad export runs/mnist-eps3/model.safetensors --to onnx -o mnist.onnx",);
pub(crate) const COMPARE: &str = examples!(
    "veilgrad compare runs/mnist-eps1 runs/mnist-eps3",
    "veilgrad compare runs/mnist-eps1 runs/mnist-eps3 --html comparison.html --json",
);
pub(crate) const REPORT: &str = examples!(
    "veilgrad report runs/mnist-eps3 -o report.html",
    "veilgrad report runs/mnist-eps3 --json",
);
pub(crate) const SERVE: &str =
    examples!("veilgrad serve", "veilgrad serve runs --port 8000", "veilgrad serve runs --json",);
pub(crate) const STATEMENT: &str = examples!(
    "veilgrad statement runs/mnist-eps3",
    "veilgrad statement runs/mnist-eps3 --ledger moved/ledger.db",
    "veilgrad statement ledger.db --dataset mnist",
);
pub(crate) const PLAN: &str = examples!(
    "veilgrad plan --records 60000 --batch 256 --epochs 60 --delta 1e-5 --epsilon 3",
    "veilgrad plan --rate 0.01 --steps 1000 --delta 1e-5 --noise-multiplier 1.1 --html plan.html",
    "veilgrad plan --records 60000 --batch 256 --epochs 60 --delta 1e-5 --epsilon 3 --sampling allocation",
    "veilgrad plan --records 60000 --batch 256 --epochs 60 --delta 1e-5 --advantage 0.1",
    "veilgrad plan --records 60000 --batch 256 --epochs 60 --delta 1e-5 --epsilon 3 --tuning-mean-runs 10",
);
pub(crate) const ACCOUNT: &str = examples!(
    "veilgrad account mnist.db --delta 1e-5",
    "veilgrad account examples/rounds/mnist-middle.jsonl --epsilon 3",
);
pub(crate) const BUDGET: &str = examples!(
    "veilgrad budget create mnist --epsilon 3 --delta 1e-5 --ledger mnist.db",
    "veilgrad budget show mnist --ledger mnist.db",
);
pub(crate) const LEDGER: &str =
    examples!("veilgrad ledger list mnist.db", "veilgrad ledger verify mnist.db",);
pub(crate) const COMPLETIONS: &str =
    examples!("veilgrad completions bash > ~/.local/share/bash-completion/completions/veilgrad",);
pub(crate) const MAN: &str = examples!(
    "veilgrad man > veilgrad.1",
    "veilgrad man budget create | man -l -",
    "veilgrad man configuration",
);
pub(crate) const BUDGET_CREATE: &str = examples!(
    "veilgrad budget create mnist --epsilon 3 --delta 1e-5 --ledger mnist.db",
    "veilgrad budget create visits --epsilon 4 --delta 1e-4 --unit user --ledger visits.db",
);
pub(crate) const BUDGET_SHOW: &str = examples!("veilgrad budget show mnist --ledger mnist.db");
pub(crate) const BUDGET_LIST: &str = examples!("veilgrad budget list --ledger mnist.db");
pub(crate) const BUDGET_TIGHTEN: &str =
    examples!("veilgrad budget tighten mnist --epsilon 2 --ledger mnist.db",);
pub(crate) const LEDGER_LIST: &str = examples!("veilgrad ledger list mnist.db");
pub(crate) const LEDGER_SHOW: &str = examples!("veilgrad ledger show mnist.db");
pub(crate) const LEDGER_VERIFY: &str = examples!(
    "veilgrad ledger verify mnist.db",
    "veilgrad ledger verify mnist.db --against \"$(cat published-head)\"",
);
pub(crate) const LEDGER_HEAD: &str = examples!("veilgrad ledger head mnist.db > published-head");
pub(crate) const LEDGER_EXPORT: &str = examples!(
    "veilgrad ledger export mnist.db > mnist.jsonl",
    "veilgrad ledger export mnist.db --format rounds | veilgrad account - --delta 1e-5",
);
pub(crate) const LEDGER_IMPORT: &str = examples!(
    "veilgrad ledger import merged.db mnist.jsonl",
    "veilgrad ledger import restored.db mnist-backup.db",
);
pub(crate) const LEDGER_REPAIR: &str =
    examples!("veilgrad ledger repair mnist.db mnist-repaired.db",);
pub(crate) const LEDGER_MOVE: &str =
    examples!("veilgrad ledger move mnist.db postgres://admin@db.example.org/privacy");
pub(crate) const LEDGER_MIGRATION: &str = examples!("veilgrad ledger migration > ledger.sql");
pub(crate) const LEDGER_BACKUP: &str = examples!("veilgrad ledger backup mnist.db mnist-backup.db");

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use crate::argument::Arguments;

    /// A command and all of its subcommands.
    fn commands(command: &Command) -> Vec<Command> {
        let below = command.get_subcommands().flat_map(commands);
        std::iter::once(command.clone()).chain(below).collect()
    }

    #[test]
    fn every_command_has_examples_and_they_parse() {
        let all = commands(&Arguments::command());
        assert!(all.len() >= 20, "{}", all.len());
        for command in all {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = help.lines().filter_map(|l| l.strip_prefix("  ")).collect();
            assert!(!lines.is_empty(), "{} has none", command.get_name());
            for line in lines {
                let head = format!("{}:1:{}", "0".repeat(32), "0".repeat(64));
                let line = line.replace("\"$(cat published-head)\"", &head);
                for part in line.split(" | ").filter(|part| part.starts_with("veilgrad")) {
                    let words = part.split(" > ").next().unwrap_or_default().split(' ');
                    let parsed = Arguments::command().try_get_matches_from(words);
                    assert!(parsed.is_ok(), "{line}: {parsed:?}");
                }
            }
        }
    }
}
