//! Toy data, and the command on it.
// Not every test needs all of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

/// A marker in the private data that must occur nowhere else.
pub(crate) const MARKER: &str = "zanzibar";

pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("veilgrad-train-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const FROZEN: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
static unsigned long state;
static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}
/* The clock starts at an hour that the test sets, and moves by a step that the test sets whenever it is read. */
int clock_gettime(clockid_t clock, struct timespec *to) {
    static long reads;
    long read = __atomic_fetch_add(&reads, 1, __ATOMIC_RELAXED);
    long milliseconds = read * number("FROZEN_STEP", 0);
    (void)clock;
    to->tv_sec = 3600 * number("FROZEN_HOUR", 1) + milliseconds / 1000;
    to->tv_nsec = milliseconds % 1000 * 1000000;
    return 0;
}
/* What a run removes at its end was on the disk, and is to be seen. */
int unlink(const char *path) {
    static int (*real)(const char *);
    if (strstr(path, "checkpoint") || strstr(path, "run.json")) return 0;
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "unlink");
    return real(path);
}
ssize_t getrandom(void *to, size_t length, unsigned flags) {
    unsigned char *bytes = to;
    (void)flags;
    for (size_t i = 0; i < length; i++) {
        state = state * 6364136223846793005UL + 1442695040888963407UL;
        bytes[i] = (unsigned char)(state >> 56);
    }
    return (ssize_t)length;
}
"#;

/// A library that replaces calls to the operating system: randomness repeats, the clock shows what the environment says
/// ([`own_clock`]), and checkpoints stay.
pub(crate) fn frozen(directory: &Directory) -> String {
    let (source, library) = (directory.file("frozen.c"), directory.file("frozen.so"));
    std::fs::write(&source, FROZEN).unwrap();
    let made =
        Command::new("cc").args(["-shared", "-fPIC", "-o", &library, &source, "-ldl"]).status();
    assert!(made.unwrap().success());
    library
}

/// Gives a command with that library a clock that no other one of this process has: it starts at another hour, so that
/// printed times differ, and is faster or slower, so that printed durations differ. All show the same day, because
/// reports have the date.
pub(crate) fn own_clock(command: &mut Command) -> &mut Command {
    static COMMANDS: AtomicU32 = AtomicU32::new(0);
    let number = COMMANDS.fetch_add(1, Ordering::Relaxed);
    let (hour, step) = (number % 23, 1000 + 7 * number);
    command.env("FROZEN_HOUR", hour.to_string()).env("FROZEN_STEP", step.to_string())
}

/// What is printed, without the estimate of the time that a run will take: it is measured on made-up records, before the
/// data is read, and so it may depend on the clock.
pub(crate) fn without_estimate(printed: &str) -> String {
    let is_estimate = |line: &str| line.starts_with("time  ") && line.ends_with(" threads");
    let Some(estimate) = printed.lines().find(|line| is_estimate(line)) else {
        return printed.to_owned();
    };
    printed.replacen(estimate, "", 1)
}

/// A linearly separable table of two classes, with words that are not declared as categories.
pub(crate) fn table(path: &str, rows: u32) {
    std::fs::write(path, table_text(rows)).unwrap();
}

pub(crate) fn table_text(rows: u32) -> String {
    let mut text = "who,x,y,word,class\n".to_owned();
    for i in 0..rows {
        let (x, y) = (f64::from(i * 37 % 101) / 101.0, f64::from(i * 53 % 97) / 97.0);
        let class = if x > y { "a" } else { "b" };
        text.push_str(&format!("{MARKER}{},{x},{y},{MARKER},{class}\n", i % 40));
    }
    text
}

/// A configuration for the table `data.csv` and a public test set.
pub(crate) fn config(directory: &Directory, rounds: u64, more: &str) -> String {
    table(&directory.file("test.csv"), 100);
    let text = format!(
        r#"
[data]
train = "{data}"
test = "{test}"
dataset = "toy"
label = "class"
classes = ["a", "b"]
records = 400
{more}
[[data.columns]]
name = "x"
bounds = [0, 1]
[[data.columns]]
name = "y"
bounds = [0, 1]
[[data.columns]]
name = "word"
categories = ["declared"]

[model]
kind = "linear"

[privacy]
epsilon = 2.0
delta = 1e-5
expected_batch = 100

[train]
rounds = {rounds}
optimizer = {{ kind = "sgd", lr = 2.0, momentum = 0.5 }}
block = 4
"#,
        data = directory.file("data.csv"),
        test = directory.file("test.csv")
    );
    let path = directory.file("config.toml");
    std::fs::write(&path, text).unwrap();
    path
}

pub(crate) fn veilgrad(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// The command. Its default ledger is `ledger.db` in the directory of results, so that tests have their own.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_veilgrad"));
    let out = arguments.iter().position(|word| *word == "--out").map(|place| arguments[place + 1]);
    let ledger = out.map_or("/nowhere/ledger.db".to_owned(), |out| format!("{out}/ledger.db"));
    command.args(arguments).env("VEILGRAD_LEDGER", ledger);
    command
}

pub(crate) fn ok(arguments: &[&str]) -> String {
    let output = veilgrad(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn refused(arguments: &[&str], code: i32, what: &str) -> String {
    let output = veilgrad(arguments);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    assert!(error.contains(what), "{what}: {error}");
    error
}

pub(crate) fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), std::fs::read(&path).unwrap()))
        .collect()
}

/// The header of a safetensors file, with its texts, and the bytes of each entry.
pub(crate) fn safetensors(bytes: &[u8]) -> (Value, BTreeMap<String, Vec<u8>>) {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let (header, values) = bytes[8..].split_at(length);
    let header: Value = serde_json::from_slice(header).unwrap();
    let of = |entry: &Value| {
        let place = |end: usize| entry["data_offsets"][end].as_u64().unwrap() as usize;
        values[place(0)..place(1)].to_vec()
    };
    let entries = header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    let entries = entries.map(|(name, entry)| (name.clone(), of(entry))).collect();
    (header, entries)
}

/// An IDX file of bytes.
pub(crate) fn idx(shape: &[u32], bytes: &[u8]) -> Vec<u8> {
    let mut file = vec![0, 0, 8, shape.len() as u8];
    shape.iter().for_each(|length| file.extend(length.to_be_bytes()));
    [file, bytes.to_vec()].concat()
}

/// A NumPy file of numbers.
pub(crate) fn npy(shape: &str, values: &[f32]) -> Vec<u8> {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    file
}
