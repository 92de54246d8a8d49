//! `veilgrad check`: lists all problems of a configuration, without touching a budget.

use serde_json::{Value, json};

use crate::argument::{Check, Common};
use crate::error::Error;
use crate::output::{print, print_json, say};
use crate::train::config::Config;
use crate::train::data;
use crate::train::job::Job;

/// The first line of output that depends on private records.
const PRIVATE: &str =
    "FOR THE DATA OWNER'S EYES: what follows depends on private records; do not publish it.";

/// How many defects are listed; the rest are only counted.
const MOST_LISTED: usize = 1000;

pub(crate) fn run(arguments: &Check, common: &Common) -> Result<(), Error> {
    let name = arguments.config.display();
    let config = match Config::read(&arguments.config) {
        Ok(config) => config,
        Err(error) => return refuse(vec![error], common),
    };
    let plan = Job::new(config.clone(), Some(1));
    let problems: Vec<Error> =
        [plan.err(), check_files(&config).err()].into_iter().flatten().collect();
    if !problems.is_empty() {
        return refuse(problems, common);
    }
    if !arguments.show_rows {
        if common.json {
            return print_json(&json!({ "schema": 1, "valid": true, "problems": [] }));
        }
        return print(&format!("{name}: nothing is wrong with it; no budget was touched\n"));
    }
    let (mut rows, mut count) = (Vec::new(), 0usize);
    data::defects(&config, |path, defect| {
        count += 1;
        if rows.len() < MOST_LISTED {
            rows.push((path.display().to_string(), defect));
        }
    })?;
    let more = count - rows.len();
    if common.json {
        let rows: Vec<Value> = rows
            .iter()
            .map(|(file, defect)| {
                let (row, column, rule) = (defect.row, &defect.column, &defect.rule);
                json!({ "file": file, "row": row, "column": column, "rule": rule })
            })
            .collect();
        let document = json!({
            "schema": 1, "valid": true, "problems": [], "private": PRIVATE, "rows": rows, "more": more,
        });
        return print_json(&document);
    }
    let mut text = format!("{PRIVATE}\n");
    for (file, defect) in rows {
        let column = defect.column.map_or(String::new(), |column| format!(", column {column}"));
        text.push_str(&format!("{file}: row {}{column}: {}\n", defect.row, defect.rule));
    }
    match (count, more) {
        (0, _) => text.push_str("every row is as declared\n"),
        (_, 0) => {}
        (_, more) => text.push_str(&format!("and {more} more\n")),
    }
    print(&text)
}

/// Reports all problems; the first decides the exit code.
fn refuse(problems: Vec<Error>, common: &Common) -> Result<(), Error> {
    if common.json {
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        print_json(&json!({ "schema": 1, "valid": false, "problems": texts }))?;
    }
    let mut problems = problems.into_iter();
    let first = problems.next();
    problems.for_each(|problem| say(&format!("error: {problem}\n")));
    first.map_or(Ok(()), Err)
}

/// Whether training could read all files; errors are those of `train`.
fn check_files(config: &Config) -> Result<(), Error> {
    data::private_and_public(config).map(|_| ())
}
