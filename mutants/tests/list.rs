//! The list fits the source as it is.

use std::collections::BTreeMap;
use std::path::Path;

use veilgrad_mutants::mutant::{Mutant, read, switch};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Whoever changes a line that a mutant changes sees it here, without the long run.
#[test]
fn every_mutant_changes_code_that_is_there_once() {
    let mutants = read(&root().join("mutants/list"), &[]).unwrap();
    let mut of_file: BTreeMap<&str, Vec<(usize, &Mutant)>> = BTreeMap::new();
    for (number, mutant) in mutants.iter().enumerate() {
        of_file.entry(&mutant.file).or_default().push((number, mutant));
    }
    for (file, mutants) in of_file {
        let source = std::fs::read_to_string(root().join(file)).unwrap();
        if let Err(error) = switch(&source, mutants.into_iter()) {
            panic!("{file}: {error}");
        }
    }
}

#[test]
fn mutants_are_chosen_by_their_name_or_their_list() {
    let lists = root().join("mutants/list");
    let chosen = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        read(&lists, &names).map(|mutants| mutants.len())
    };
    assert_eq!(chosen(&["late-flush"]).unwrap(), 1);
    assert_eq!(chosen(&["random", "late-flush"]).unwrap(), chosen(&["random"]).unwrap() + 1);
    assert!(chosen(&["no-such-mutant"]).is_err());
}

#[test]
fn every_mutant_has_a_promise_and_a_test() {
    let mutants = read(&root().join("mutants/list"), &[]).unwrap();
    assert!(mutants.len() >= 120, "{}", mutants.len());
    for mutant in &mutants {
        assert!(!mutant.killed_by.is_empty() && mutant.promise.ends_with('.'), "{}", mutant.name);
    }
}

/// A renamed test would kill nothing.
#[test]
fn the_tests_that_mutants_name_exist() {
    fn read_sources(directory: &Path, sources: &mut String) {
        for file in std::fs::read_dir(directory).unwrap() {
            let path = file.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                read_sources(&path, sources);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut sources = String::new();
    for directory in ["crates", "statistics", "fuzz"] {
        read_sources(&root().join(directory), &mut sources);
    }
    let is_declaration = |line: &&str| line.contains("fn ") || line.contains("mod ");
    let declarations: Vec<&str> = sources.lines().filter(is_declaration).collect();
    for mutant in read(&root().join("mutants/list"), &[]).unwrap() {
        for test in &mutant.killed_by {
            // A filter is part of a test's name, a module with `::` after it, or nothing.
            let name = test.filter.trim_end_matches(':').rsplit(':').next().unwrap();
            if name.is_empty() {
                continue;
            }
            let is_there = declarations.iter().any(|line| line.contains(name));
            assert!(is_there, "{}: there is no test {name}", mutant.name);
        }
    }
}

#[test]
fn the_documents_state_how_long_the_lists_are_and_which_ci_runs() {
    let text = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let (document, script) = (text("docs/assurance.md"), text(".ci/run"));
    let command = "veilgrad-mutants\" ";
    let ci = script.lines().find_map(|line| line.split_once(command)).unwrap().1;
    let ci = ci.replace("$(<mutants/also-in-ci)", &text("mutants/also-in-ci"));
    let ci: Vec<String> = ci.split_whitespace().map(str::to_owned).collect();
    let lists = root().join("mutants/list");
    let count = |names: &[String]| read(&lists, names).unwrap().len();
    let mut rows = vec![("CI: all of these, and `mutants/also-in-ci`".to_owned(), count(&ci))];
    for file in std::fs::read_dir(&lists).unwrap() {
        let name = file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned();
        rows.push((format!("`{name}`"), count(&[name])));
    }
    for (name, count) in rows {
        let row = format!("| {name} | {count} |");
        assert!(document.contains(&row), "docs/assurance.md lacks {row}");
    }
    let all = format!("{} privacy bugs", count(&[]));
    assert!(text("CHANGELOG.md").contains(&all), "CHANGELOG.md lacks {all}");
}

#[test]
fn the_mutants_that_the_documents_name_are_in_the_lists() {
    let document = std::fs::read_to_string(root().join("docs/assurance.md")).unwrap();
    let (_, table) = document.split_once("| bug | promise | noticed by |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let names: Vec<String> = rows.map(|row| row.split('`').nth(1).unwrap().to_owned()).collect();
    assert_eq!(read(&root().join("mutants/list"), &names).unwrap().len(), names.len());
    assert!(names.len() >= 16, "{names:?}");
}
