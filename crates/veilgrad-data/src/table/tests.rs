//! Tables with good, bad and malformed rows.

use super::*;

fn schema() -> Schema {
    let number = |name: &str, low, high| Column {
        name: name.to_owned(),
        kind: Kind::Number { low, high, missing: None },
    };
    let words = ["red", "green"].map(str::to_owned).to_vec();
    Schema {
        columns: vec![
            number("age", 0.0, 100.0),
            Column { name: "colour".to_owned(), kind: Kind::Category { words, missing: None } },
        ],
        label: "sick".to_owned(),
        target: Target::Classes(vec!["no".to_owned(), "yes".to_owned()]),
        user: Some("who".to_owned()),
        text: TextFormat::default(),
    }
}

fn parse(text: impl AsRef<[u8]>) -> Result<Table, DataError> {
    csv::read(&schema(), Path::new("table.csv"), text.as_ref(), b',', (true, None), &mut |_| ())
}

const HEAD: &str = "who,sick,colour,age\n";

#[test]
fn cells_become_numbers_as_declared() {
    let text = "\u{feff}who,sick,colour,other,age\r\nann,yes,green,x,50\r\n\
                bob,no,blue,y,999\nann,\"no\", red ,,0";
    let table = parse(text).unwrap();
    assert!(table.inputs.values == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, -1.0, 1.0, 0.0]);
    assert!(table.labels == [1.0, 0.0, 0.0]);
    assert!(table.users == Some(vec![Some(0), Some(1), Some(0)]));
}

#[test]
fn a_file_that_is_malformed_as_a_whole_is_an_error() {
    for (text, what) in [
        ("", "has no column"),
        ("who,colour,age\n", "no column \"sick\""),
        ("who,sick,colour,age,age\n", "two columns \"age\""),
        ("who,sick,\"colour,age\nann,yes,red,1\n", "a quote is left open"),
    ] {
        let error = parse(text).err().unwrap().to_string();
        assert!(error.contains(what), "{error}");
    }
}

/// Whether an example will contribute zero.
fn is_zero(table: &Table, row: usize) -> bool {
    let nameless = table.users.as_ref().is_some_and(|users| users[row].is_none());
    let inputs = table.inputs.rows().nth(row).unwrap();
    nameless || table.labels[row].is_nan() || inputs.iter().any(|value| value.is_nan())
}

#[test]
fn a_bad_record_contributes_zero_and_leaves_the_others_as_they_are() {
    let good = parse(format!("{HEAD}ann,yes,red,1\nann,yes,green,3\n")).unwrap();
    for bad in [
        "ann,SECRET,red,1",
        "ann,,red,1",
        "ann,yes,red,SECRET",
        "ann,yes,red,",
        "ann,yes,red,nan",
        "ann,yes,red",
        "ann,yes,red,1,1",
        "",
        "\"ann,yes,red,1",
        "ann,yes,\"red,1",
        "ann,yes,red,1\"\",\"",
        ",yes,red,1",
        "ann,yes,red,1\r2",
    ] {
        let table = parse(format!("{HEAD}ann,yes,red,1\n{bad}\nann,yes,green,3\n")).unwrap();
        assert_eq!(table.labels.len(), 3, "{bad}");
        assert!(is_zero(&table, 1), "{bad}");
        for (row, of_good) in [(0, 0), (2, 1)] {
            let inputs = |table: &Table, row| table.inputs.rows().nth(row).unwrap().to_vec();
            assert!(inputs(&table, row) == inputs(&good, of_good), "{bad}");
            assert!(table.labels[row] == good.labels[of_good], "{bad}");
            assert!(table.users.as_ref().unwrap()[row] == Some(0), "{bad}");
        }
    }
    for bytes in [&b"\xff,yes,red,1\n"[..], b"ann,\xff,red,1\n", b"ann,yes,red,\xff\n"] {
        assert!(is_zero(&parse([HEAD.as_bytes(), bytes].concat()).unwrap(), 0));
    }
}

#[test]
fn rows_without_a_name_are_not_one_user() {
    let table = parse(format!("{HEAD},yes,red,1\n,no,red,1\nbob,no,red,1\n")).unwrap();
    assert!(table.users == Some(vec![None, None, Some(0)]));
}

#[test]
fn missing_values_are_replaced_as_declared() {
    let mut schema = schema();
    let words = ["red", "green"].map(str::to_owned).to_vec();
    for (missing, expected) in [(0.0, -1.0), (50.0, 0.0), (999.0, 1.0)] {
        schema.columns[0].kind = Kind::Number { low: 0.0, high: 100.0, missing: Some(missing) };
        schema.columns[1].kind = Kind::Category { words: words.clone(), missing: Some(1) };
        let text = format!("{HEAD}ann,yes,blue,\nann,yes,,x\nann,yes,red,nan\n");
        let mut rules = Vec::new();
        let mut found = |defect: Defect| rules.push((defect.row, defect.rule));
        let table =
            csv::read(&schema, Path::new("t"), text.as_bytes(), b',', (true, None), &mut found)
                .unwrap();
        let e = expected;
        assert!(table.inputs.values == [e, 0.0, 1.0, e, 0.0, 1.0, e, 1.0, 0.0]);
        assert!((0..3).all(|row| !is_zero(&table, row)));
        assert_eq!(rules[0], (1, format!("is empty: counts as {missing}")));
        let rule = "is none of the declared categories: counts as \"green\"";
        assert_eq!(rules[1], (1, rule.to_owned()));
    }
}

#[test]
fn defects_name_places_and_rules_but_not_contents() {
    let text = format!(
        "{HEAD}ann,yes,red,1\nann,SECRET,red,1\nann,yes,SECRET,SECRET\nann,SECRET\n\"SECRET\n,no,red,\n"
    );
    let mut lines = Vec::new();
    let mut found = |defect: Defect| {
        let column = defect.column.unwrap_or("-".to_owned());
        lines.push(format!("{} {column} {}", defect.row, defect.rule));
    };
    csv::read(&schema(), Path::new("t"), text.as_bytes(), b',', (true, None), &mut found).unwrap();
    let zero = "the example contributes zero";
    assert_eq!(
        lines,
        [
            format!("2 sick is none of the declared classes: {zero}"),
            format!("3 age is not a number: {zero}"),
            "3 colour is none of the declared categories: counts as none of them".to_owned(),
            format!("4 - has more or fewer cells than the header: {zero}"),
            format!("5 - has a quote that is left open on its line: {zero}"),
            format!("6 age is empty: {zero}"),
            format!("6 who names no user: {zero}"),
        ]
    );
}

#[test]
fn tables_cut_or_altered_at_any_byte_do_not_panic() {
    let whole = b"who,sick,colour,age\nann,yes,\"re\"\"d\",1\nbob,no,green,2\n";
    for place in 0..whole.len() {
        let _ = parse(&whole[..place]);
        for byte in [0, b',', b'"', b'\n', 0xff] {
            let mut altered = whole.to_vec();
            altered[place] = byte;
            let _ = parse(altered);
        }
    }
}

proptest::proptest! {
    #[test]
    fn no_line_changes_what_is_read_from_the_others(mut line: Vec<u8>, kind in 0..4) {
        // Makes bytes with a meaning in CSV more frequent.
        for byte in &mut line {
            *byte = match (*byte % 8, kind) {
                (0, 1..) => b'"',
                (1, 1..) => b',',
                (2, 2..) => b'\r',
                _ if *byte == b'\n' => b'n',
                _ => *byte,
            };
        }
        let text = [HEAD.as_bytes(), b"ann,yes,red,1\n", &line, b"\nann,no,green,3\n"].concat();
        let table = parse(text).unwrap();
        let rows: Vec<&[f32]> = table.inputs.rows().collect();
        assert!(rows.len() == 3 && table.labels.len() == 3);
        assert!(*rows[0] == [-0.98, 1.0, 0.0] && *rows[2] == [-0.94, 0.0, 1.0]);
        assert!((table.labels[0], table.labels[2]) == (1.0, 0.0));
        let users = table.users.unwrap();
        assert!((users[0], users[2]) == (Some(0), Some(0)));
    }
}

/// Reads bytes as a file of this name.
fn read_as(schema: &Schema, name: &str, bytes: &[u8]) -> Result<Table, DataError> {
    let path = std::env::temp_dir().join(format!("veilgrad-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    let table = schema.read(&path);
    std::fs::remove_file(&path).unwrap();
    table
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// Asserts that a table has the rows of `cells_become_numbers_as_declared`.
fn assert_as_declared(table: &Table, name: &str) {
    assert!(table.inputs.values == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, -1.0, 1.0, 0.0], "{name}");
    assert!(table.labels == [1.0, 0.0, 0.0], "{name}");
    assert!(table.users == Some(vec![Some(0), Some(1), Some(0)]), "{name}");
}

#[test]
fn the_same_rows_are_read_from_every_format_of_text() {
    let rows = "ann,yes,green,50\nbob,no,blue,999\nann,no,red,0\n";
    let csv = format!("{HEAD}{rows}");
    let header = Some(["who", "sick", "colour", "age"].map(str::to_owned).to_vec());
    let json = "{\"who\":\"ann\",\"sick\":\"yes\",\"colour\":\"green\",\"age\":50}\n\
                {\"age\":9.99e2,\"x\":[1],\"who\":\"bob\",\"sick\":\"no\",\"colour\":\"blue\"}\n\
                {\"who\":\"\\u0061nn\",\"sick\":\"no\",\"colour\":\"red\",\"age\":\"0\"}";
    let with = |delimiter: Option<u8>, header: Option<Vec<String>>| Schema {
        text: TextFormat { delimiter, header },
        ..schema()
    };
    for (name, schema, text) in [
        ("a.csv", with(None, None), csv.clone()),
        ("b.csv", with(Some(b';'), None), csv.replace(',', ";")),
        ("c.tsv", with(None, None), csv.replace(',', "\t")),
        ("d.tsv", with(Some(b','), None), csv.clone()),
        ("e.csv", with(None, header.clone()), rows.to_owned()),
        ("f.csv", with(Some(b'|'), header), format!("\u{feff}{}", rows.replace(',', "|"))),
        ("g.jsonl", with(None, None), json.to_owned()),
        ("h.ndjson", with(None, None), format!("\u{feff}{json}\r\n")),
    ] {
        assert_as_declared(&read_as(&schema, name, text.as_bytes()).unwrap(), name);
        let packed = gzipped(text.as_bytes());
        let name = format!("{name}.gz");
        assert_as_declared(&read_as(&schema, &name, &packed).unwrap(), &name);
        for length in 2..packed.len() {
            assert!(read_as(&schema, &name, &packed[..length]).is_err(), "{name} {length}");
        }
    }
}

#[test]
fn a_declared_header_must_name_the_declared_columns_and_every_line_is_a_record() {
    let with = |names: &[&str]| Schema {
        text: TextFormat {
            delimiter: None,
            header: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        },
        ..schema()
    };
    let error =
        read_as(&with(&["who", "sick", "colour"]), "n.csv", b"ann,yes,red\n").err().unwrap();
    assert!(error.to_string().contains("no column \"age\""), "{error}");
    let all = with(&["who", "sick", "colour", "age"]);
    let table =
        read_as(&all, "n.csv", format!("{HEAD}ann,yes,red,1\nann,yes\n").as_bytes()).unwrap();
    assert_eq!(table.labels.len(), 3);
    assert!(is_zero(&table, 0) && !is_zero(&table, 1) && is_zero(&table, 2));
}

#[test]
fn a_bad_line_of_json_contributes_zero_and_leaves_the_others_as_they_are() {
    let good = r#"{"who":"ann","sick":"yes","colour":"red","age":1}"#;
    for bad in [
        "",
        "null",
        "[1,2]",
        "SECRET",
        r#"{"who":"ann""#,
        r#"{"who":"ann","sick":"yes","colour":"red","age":NaN}"#,
        r#"{"who":"ann","sick":"yes","colour":"red","age":null}"#,
        r#"{"who":"ann","sick":"yes","colour":"red","age":[1]}"#,
        r#"{"who":"ann","sick":"yes","colour":"red","age":{"x":1}}"#,
        r#"{"who":"ann","sick":"yes","colour":"red","age":true}"#,
        r#"{"who":"ann","sick":"yes","colour":"red"}"#,
        r#"{"who":"ann","colour":"red","age":1}"#,
        r#"{"who":"ann","sick":["yes"],"colour":"red","age":1}"#,
        r#"{"who":null,"sick":"yes","colour":"red","age":1}"#,
        r#"{"sick":"yes","colour":"red","age":1}"#,
        r#"{"who":"ann","sick":"yes","colour":"red","age":1} {}"#,
    ] {
        let text = format!("{good}\n{bad}\n{good}\n");
        let table = read_as(&schema(), "bad.jsonl", text.as_bytes()).unwrap();
        assert!(table.labels.len() == 3 && is_zero(&table, 1), "{bad}");
        for row in [0, 2] {
            assert!(*table.inputs.rows().nth(row).unwrap() == [-0.98, 1.0, 0.0], "{bad}");
            assert!(table.labels[row] == 1.0 && table.users.as_ref().unwrap()[row] == Some(0));
        }
    }
    let bytes = [good.as_bytes(), b"\n{\"who\":\"\xff\"}\n"].concat();
    assert!(is_zero(&read_as(&schema(), "bytes.jsonl", &bytes).unwrap(), 1));
}

#[test]
fn users_whose_ids_floating_point_would_merge_stay_apart_in_json() {
    let line =
        |id: &str| format!("{{\"who\":{id},\"sick\":\"no\",\"colour\":\"red\",\"age\":1}}\n");
    let ids = ["100000000000000000000", "100000000000000000001", "100000000000000000000"];
    let table = read_as(&schema(), "ids.jsonl", ids.map(line).concat().as_bytes()).unwrap();
    assert!(table.users == Some(vec![Some(0), Some(1), Some(0)]));
}

#[test]
fn missing_values_of_json_are_replaced_as_declared() {
    let mut schema = schema();
    let words = ["red", "green"].map(str::to_owned).to_vec();
    schema.columns[0].kind = Kind::Number { low: 0.0, high: 100.0, missing: Some(50.0) };
    schema.columns[1].kind = Kind::Category { words, missing: Some(1) };
    let text =
        "{\"who\":1,\"sick\":\"no\"}\n{\"who\":1,\"sick\":\"no\",\"age\":null,\"colour\":null}\n";
    let table = read_as(&schema, "missing.jsonl", text.as_bytes()).unwrap();
    assert!(table.inputs.values == [0.0, 0.0, 1.0, 0.0, 0.0, 1.0]);
}

#[test]
fn a_label_that_is_a_number_is_scaled_from_its_bounds() {
    let mut schema = schema();
    schema.target = Target::Number { low: 0.0, high: 10.0 };
    let labels = ["5", "10", "0", "99", "-1", "2.5", "", "yes", "nan", "inf"];
    let rows: String = labels.iter().map(|label| format!("ann,{label},red,1\n")).collect();
    let table = read_as(&schema, "target.csv", format!("{HEAD}{rows}").as_bytes()).unwrap();
    assert!(table.labels[..6] == [0.0, 1.0, -1.0, 18.8, -1.2, -0.5]);
    assert!(table.labels[9] == f32::INFINITY);
    assert!(table.labels[6..9].iter().all(|label| label.is_nan()));
}

#[test]
fn a_category_as_an_index_is_one_number() {
    let words = ["red", "green"].map(str::to_owned).to_vec();
    for (missing, unknown) in [(None, -1.0), (Some(1), 1.0)] {
        let mut schema = schema();
        schema.columns[1].kind = Kind::Index { words: words.clone(), missing };
        assert_eq!(schema.width(), 2);
        let text =
            format!("{HEAD}ann,yes,green,50\nann,yes,red,50\nann,yes,blue,50\nann,yes,red\n");
        let table = read_as(&schema, "index.csv", text.as_bytes()).unwrap();
        assert!(table.inputs.values[..6] == [0.0, 1.0, 0.0, 0.0, 0.0, unknown]);
        assert!(table.inputs.values[6..].iter().all(|value| value.is_nan()));
    }
}
