//! Arguments of `init`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;
use veilgrad_events::{Delta, Epsilon};

use super::{checked, target_epsilon};

/// Declarations for a new configuration. On a terminal, what is missing is asked for.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Init {
    /// The private data that the configuration is for. This command never opens it.
    pub(crate) data: PathBuf,
    /// Where to write the configuration; by default the name of the data, with .toml, in the working directory.
    #[arg(short, long, value_name = "CONFIG")]
    pub(crate) output: Option<PathBuf>,
    /// Replace a file that is there.
    #[arg(long)]
    pub(crate) force: bool,
    /// A public table with the same columns: bounds, categories and classes are proposed from it. Never name private data.
    #[arg(long, value_name = "FILE")]
    pub(crate) public_sample: Option<PathBuf>,
    /// A public number of records, about as many as there are.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) records: Option<u64>,
    /// The target epsilon of a run.
    #[arg(long, value_parser = target_epsilon)]
    pub(crate) epsilon: Option<Epsilon>,
    /// The delta; by default a power of ten below one over the number of records, and at most 1e-5.
    #[arg(long, value_parser = checked::<Delta>)]
    pub(crate) delta: Option<Delta>,
    /// The name of the dataset in budgets; by default the name of the data file.
    #[arg(long, value_name = "NAME")]
    pub(crate) dataset: Option<String>,
    /// Public examples, on which the accuracy is printed.
    #[arg(long, value_name = "FILE")]
    pub(crate) test: Option<PathBuf>,
    /// The column with the label, in a table.
    #[arg(long, value_name = "NAME")]
    pub(crate) label: Option<String>,
    /// The classes: their names, or how many there are.
    #[arg(long, value_name = "A,B,...|N", conflicts_with = "label_bounds")]
    pub(crate) classes: Option<String>,
    /// The bounds of a label that is a number.
    #[arg(long, value_name = "LOW..HIGH", alias = "target-bounds", value_parser = bounds, allow_hyphen_values = true)]
    pub(crate) label_bounds: Option<[f64; 2]>,
    /// A column with numbers, and their bounds.
    #[arg(long, value_name = "NAME=LOW..HIGH", value_parser = numeric)]
    pub(crate) numeric: Vec<(String, [f64; 2])>,
    /// A column with words, and all of them.
    #[arg(long, value_name = "NAME=A,B,...", value_parser = categorical)]
    pub(crate) categorical: Vec<(String, Words)>,
    /// A column of the public sample that is not used.
    #[arg(long, value_name = "NAME")]
    pub(crate) ignore: Vec<String>,
    /// The column that names persons: the guarantee then protects persons with all of their rows.
    #[arg(long, value_name = "COLUMN", requires = "max_examples", group = "persons")]
    pub(crate) user: Option<String>,
    /// A file with a whole number for each example of an array, which says whose it is: the guarantee then protects persons.
    #[arg(long, value_name = "FILE", requires = "max_examples", group = "persons")]
    pub(crate) user_ids: Option<PathBuf>,
    /// How many examples of a person are used.
    #[arg(long, value_name = "N", requires = "persons")]
    pub(crate) max_examples: Option<NonZeroU32>,
    /// The names of all columns in order, if the first line of the table is a record already.
    #[arg(long, value_name = "A,B,...", value_parser = words)]
    pub(crate) header: Option<Words>,
    /// The character between the cells of a table; by default a tab in .tsv files and a comma in others.
    #[arg(long, value_name = "CHARACTER")]
    pub(crate) delimiter: Option<char>,
    /// The labels of arrays.
    #[arg(long, value_name = "FILE")]
    pub(crate) labels: Option<PathBuf>,
    /// The names of the arrays of an .npz file: examples, labels and, if ids of persons are in such a file, ids.
    #[arg(long, value_name = "INPUTS,LABELS[,USERS]", value_parser = words)]
    pub(crate) arrays: Option<Words>,
    /// The labels of the public examples, for arrays.
    #[arg(long, value_name = "FILE", requires = "test")]
    pub(crate) test_labels: Option<PathBuf>,
    /// The shape of an example of an array.
    #[arg(long, value_name = "ROWS,COLUMNS,...", value_delimiter = ',')]
    pub(crate) shape: Vec<usize>,
    /// The bounds of all numbers of an array.
    #[arg(long, value_name = "LOW..HIGH", value_parser = bounds, allow_hyphen_values = true)]
    pub(crate) bounds: Option<[f64; 2]>,
}

/// Words of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Words(pub(crate) Vec<String>);

/// Bounds, as in `0..100`.
pub(crate) fn bounds(text: &str) -> Result<[f64; 2], String> {
    let rule = || format!("{text:?} is not LOW..HIGH, two numbers that ascend");
    let (low, high) = text.split_once("..").ok_or_else(rule)?;
    let number = |text: &str| text.trim().parse::<f64>().map_err(|_| rule());
    let bounds = [number(low)?, number(high)?];
    let ascend = bounds[0] < bounds[1] && (bounds[1] - bounds[0]).is_finite();
    if ascend { Ok(bounds) } else { Err(rule()) }
}

/// Words, separated by commas.
pub(crate) fn words(text: &str) -> Result<Words, String> {
    let words: Vec<String> = text.split(',').map(|word| word.trim().to_owned()).collect();
    match words.iter().any(String::is_empty) {
        true => Err(format!("{text:?} is not A,B,...: words that are separated by commas")),
        false => Ok(Words(words)),
    }
}

fn numeric(text: &str) -> Result<(String, [f64; 2]), String> {
    // Names may contain the sign, bounds do not.
    let parts = text.rsplit_once('=').filter(|(name, _)| !name.is_empty());
    let (name, range) = parts.ok_or_else(|| format!("{text:?} is not NAME=LOW..HIGH"))?;
    Ok((name.to_owned(), bounds(range)?))
}

fn categorical(text: &str) -> Result<(String, Words), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, list) = parts.ok_or_else(|| format!("{text:?} is not NAME=A,B,..."))?;
    Ok((name.to_owned(), words(list)?))
}
