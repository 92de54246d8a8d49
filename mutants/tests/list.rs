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
fn the_list_is_as_long_as_the_documents_say() {
    let mutants = read(&root().join("mutants/list"), &[]).unwrap();
    assert!(mutants.len() >= 120, "{}", mutants.len());
    for mutant in &mutants {
        assert!(!mutant.killed_by.is_empty() && mutant.promise.ends_with('.'), "{}", mutant.name);
    }
}
