//! The shares of several processes are the records of one, whatever the file.

use std::path::{Path, PathBuf};

use veilgrad_nn::Records;

use super::*;

const ROWS: usize = 41;

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let name = format!("veilgrad-share-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.0.join(name), bytes).unwrap();
    }

    fn config(&self, data: &str, sampling: &str) -> Config {
        let text = format!(
            r#"
            model = {{ kind = "linear" }}
            privacy = {{ epsilon = 3.0, delta = 1e-5, expected_batch = 4, sampling = "{sampling}" }}
            train = {{ rounds = 5, optimizer = {{ kind = "sgd", lr = 0.5 }} }}
            [data]
            {data}
            "#
        );
        let text = text.replace("HERE", &self.0.display().to_string());
        toml::from_str(&text).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An IDX file of bytes with these lengths.
fn idx(lengths: &[usize], value: impl Fn(usize) -> u8) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, lengths.len() as u8];
    lengths.iter().for_each(|length| bytes.extend((*length as u32).to_be_bytes()));
    bytes.extend((0..lengths.iter().product()).map(value));
    bytes
}

fn records(config: &Config, process: Process) -> TrainingRecords {
    read(config, process).unwrap().into_records(&config.declaration(), 1).unwrap()
}

/// The examples of a record: bits of inputs and target.
fn examples(records: &TrainingRecords, record: u64, width: usize) -> Vec<Vec<u32>> {
    let example = |example: usize| {
        let (mut input, mut target) = (vec![0.0; width], [0.0]);
        records.read(record, example, &mut input, &mut target);
        input.iter().chain(&target).map(|value| value.to_bits()).collect()
    };
    (0..records.examples(record)).map(example).collect()
}

/// Compares the shares of 1 to 5 processes with the records of one.
fn compare(config: &Config, width: usize, is_shared: bool) {
    let whole = records(config, Process::ALONE);
    assert!(whole.count() > 5);
    for size in 1..=5 {
        let mut rows = 0;
        for rank in 0..size {
            let process = Process { rank, size };
            let mine = records(config, process);
            assert_eq!(mine.count(), whole.count());
            for record in share_of(whole.count(), rank, size) {
                let expected = examples(&whole, record, width);
                assert_eq!(examples(&mine, record, width), expected, "{record} of {process:?}");
            }
            rows += read(config, process).unwrap().rows.count();
        }
        assert_eq!(rows == ROWS, is_shared || size == 1, "{size} processes read {rows} rows");
    }
}

fn arrays(directory: &Directory) {
    directory.write("inputs", &idx(&[ROWS, 2, 3], |i| (i * 7 % 251) as u8));
    directory.write("labels", &idx(&[ROWS], |i| (i % 4) as u8));
    directory.write("ids", &idx(&[ROWS], |i| (i * i % 13) as u8));
}

const ARRAYS: &str = r#"
    train = "HERE/inputs"
    labels = "HERE/labels"
    classes = 3
    records = 41
    shape = [2, 3]
    bounds = [0, 255]
"#;

#[test]
fn a_process_reads_its_rows_of_arrays_and_tables() {
    let directory = Directory::new("rows");
    arrays(&directory);
    compare(&directory.config(ARRAYS, "poisson"), 6, true);
    compare(
        &directory.config(&format!("{ARRAYS}record = {{ microbatch = 4 }}"), "poisson"),
        6,
        true,
    );
    let ids = r#"record = { user_ids = "HERE/ids", max_examples = 8 }"#;
    compare(&directory.config(&format!("{ARRAYS}{ids}"), "poisson"), 6, true);
    let made_up = r#"record = { partition = "uniform", users = 9, max_examples = 8, seed = 3 }"#;
    compare(&directory.config(&format!("{ARRAYS}{made_up}"), "poisson"), 6, true);
    // With a public number of rows, any record may come to any process.
    compare(&directory.config(ARRAYS, "truncated"), 6, false);

    let mut table = "who,age,sick\n".to_owned();
    for row in 0..ROWS {
        table += &match row % 11 {
            4 => "too,many,cells,here\n".to_owned(),
            _ => format!("person{},{},{}\n", row * row % 13, row, ["no", "yes", "?"][row % 3]),
        };
    }
    directory.write("table.csv", table.as_bytes());
    let table = r#"
        train = "HERE/table.csv"
        label = "sick"
        classes = ["no", "yes"]
        records = 41
        columns = [{ name = "age", bounds = [0, 100] }]
    "#;
    compare(&directory.config(table, "poisson"), 1, true);
    let users = directory
        .config(&format!("{table}record = {{ user = \"who\", max_examples = 8 }}"), "poisson");
    let whole = records(&users, Process::ALONE);
    for (rank, record) in
        (0..3).flat_map(|rank| share_of(whole.count(), rank, 3).map(move |record| (rank, record)))
    {
        let mine = records(&users, Process { rank, size: 3 });
        assert_eq!(examples(&mine, record, 1), examples(&whole, record, 1));
    }
}

/// Parts of the arrays and of the table, of which one is empty, have the records of the whole, users in several files included.
#[test]
fn several_files_have_the_records_of_one() {
    let directory = Directory::new("files");
    arrays(&directory);
    let parts = [0..17, 17..17, 17..ROWS];
    let mut lines: Vec<String> = Vec::new();
    for row in 0..ROWS {
        let who = if row % 7 == 3 { String::new() } else { format!("person{}", row * row % 13) };
        lines.push(format!("{who},{row},{}\n", ["no", "yes", "?"][row % 3]));
    }
    let header = "who,age,sick\n";
    directory.write("table.csv", (header.to_owned() + &lines.concat()).as_bytes());
    for (number, part) in parts.iter().enumerate() {
        let (first, count) = (part.start, part.len());
        let inputs = idx(&[count, 2, 3], |i| ((6 * first + i) * 7 % 251) as u8);
        directory.write(&format!("inputs{number}"), &inputs);
        directory.write(&format!("labels{number}"), &idx(&[count], |i| ((first + i) % 4) as u8));
        let table = header.to_owned() + &lines[part.clone()].concat();
        directory.write(&format!("table{number}.csv"), table.as_bytes());
    }
    let arrays = ARRAYS
        .replace("\"HERE/inputs\"", r#"["HERE/inputs0", "HERE/inputs1", "HERE/inputs2"]"#)
        .replace("\"HERE/labels\"", r#"["HERE/labels0", "HERE/labels1", "HERE/labels2"]"#);
    let table = r#"
        label = "sick"
        classes = ["no", "yes"]
        records = 41
        columns = [{ name = "age", bounds = [0, 100] }]
        train = "#;
    let whole = format!("{table}\"HERE/table.csv\"");
    let tables = format!(r#"{table}["HERE/table0.csv", "HERE/table1.csv", "HERE/table2.csv"]"#);
    for (whole, parts, record, width) in [
        (ARRAYS, &arrays, "", 6),
        (ARRAYS, &arrays, "record = { microbatch = 4 }", 6),
        (ARRAYS, &arrays, r#"record = { user_ids = "HERE/ids", max_examples = 8 }"#, 6),
        (&whole, &tables, "", 1),
        (&whole, &tables, r#"record = { user = "who", max_examples = 8 }"#, 1),
    ] {
        let config = |data: &str| directory.config(&format!("{data}\n{record}"), "poisson");
        let (whole, parts) = (config(whole), config(parts));
        let (one, several) = (records(&whole, Process::ALONE), records(&parts, Process::ALONE));
        assert_eq!(several.count(), one.count());
        assert!(one.count() > 5);
        for size in 1..=3 {
            for rank in 0..size {
                let mine = records(&parts, Process { rank, size });
                for record in share_of(one.count(), rank, size) {
                    let expected = examples(&one, record, width);
                    assert_eq!(examples(&mine, record, width), expected, "{record}");
                }
            }
        }
    }
    // Each file has its own labels.
    directory.write("labels0", &idx(&[16], |_| 1));
    directory.write("labels2", &idx(&[25], |_| 1));
    for size in 1..=2 {
        let error = read(&directory.config(&arrays, "poisson"), Process { rank: 0, size }).err();
        let Some(Error::Data { path, .. }) = error else { panic!("{size}") };
        assert!(Path::new(&path).ends_with("labels0"), "{path}");
    }
}

#[test]
fn every_process_notices_that_labels_and_inputs_do_not_match() {
    let directory = Directory::new("labels");
    arrays(&directory);
    let config = directory.config(ARRAYS, "poisson");
    for labels in [0, 1, ROWS - 1, ROWS + 1] {
        directory.write("labels", &idx(&[labels], |_| 1));
        for rank in 0..3 {
            let error = read(&config, Process { rank, size: 3 }).err();
            let Some(Error::Data { path, cause }) = error else { panic!("{labels} labels") };
            assert!(Path::new(&path).ends_with("labels"), "{path}");
            assert_eq!(cause, "has not as many labels as there are examples");
        }
    }
}

#[test]
fn public_inputs_are_compared_with_the_whole_private_file() {
    let directory = Directory::new("public");
    arrays(&directory);
    let config = directory.config(ARRAYS, "poisson");
    let whole = train(&config).unwrap();
    for size in 1..4 {
        let share = read(&config, Process { rank: 0, size }).unwrap();
        assert!(share.has_inputs_of(&whole, &config).unwrap());
        for place in [0, whole.scaled.len() - 1] {
            let mut other = train(&config).unwrap();
            other.scaled[place] += 0.5;
            assert!(!share.has_inputs_of(&other, &config).unwrap(), "{place}");
        }
    }
}
