//! Commands run inside another program's process, as in the Python package.

mod common;

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use common::{Directory, config, ok, table};
use veilgrad_cli::{Trained, Watch, report, run};

fn words(words: &[&str]) -> Vec<OsString> {
    std::iter::once("veilgrad").chain(words.iter().copied()).map(OsString::from).collect()
}

#[test]
fn failures_have_the_code_of_the_command_and_say_why() {
    let failure = run(words(&["account", "no such file", "--delta", "1e-5"]), None).unwrap_err();
    assert_eq!(failure.code(), 1);
    assert!(failure.to_string().contains("no such file"));
    assert_eq!(run(words(&["plan", "--delta", "7"]), None).unwrap_err().code(), 2);
    assert_eq!(run(words(&["--help"]), None).unwrap_err().code(), 0);
}

#[test]
fn whoever_watches_sees_rounds_can_stop_and_reads_what_was_made() {
    let directory = Directory::new("watched");
    table(&directory.file("data.csv"), 400);
    let path = config(&directory, 40, "");
    let (out, ledger) = (directory.file("out"), directory.file("ledger.db"));
    let train = ["train", &path, "--quiet", "--out", &out, "--ledger", &ledger];

    let watch = Arc::new(Watch::default());
    watch.stop();
    let failure = run(words(&train), Some(Arc::clone(&watch))).unwrap_err();
    assert_eq!(failure.code(), 130);
    assert!(Path::new(&out).join("checkpoint.safetensors").exists());

    let watch = Arc::new(Watch::default());
    run(words(&[&train[..], &["--resume"]].concat()), Some(Arc::clone(&watch))).unwrap();
    assert_eq!(watch.progress(), (40, 40));

    let trained = Trained::read(&Path::new(&out).join("model.safetensors")).unwrap();
    assert_eq!(trained.classes().len(), 2);
    assert!(trained.declaration().unwrap().contains("columns"));
    let width: usize = trained.model().input().iter().product();
    assert_eq!(trained.outputs(vec![0.5; 3 * width], 1).unwrap().len(), 6);
    assert!(trained.outputs(vec![0.5; width + 1], 1).is_err());

    let (json, page, statement) = report(Path::new(&out), None).unwrap();
    assert_eq!(format!("{json}\n"), ok(&["report", &out, "--json"]));
    assert!(page.contains("<html") && statement.contains("epsilon"));
    assert!(report(Path::new("no such run"), None).is_err());
}
