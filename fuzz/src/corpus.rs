//! Writes the saved inputs: `veilgrad-fuzz --write-corpus`.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use veilgrad_accounting::Tightest;
use veilgrad_events::{
    Adjacency, Budget, ClipNorm, Delta, Epsilon, Event, FixedBatch, Hash, Head, Insecure,
    IntegerGrid, MemoryLedger, Mode, NoiseStd, RecordUnit, Reservation, Round, Rounds, RoundsFile,
    Run, RunHeader, SampleRate, Sampling, SumQuery, TruncatedPoisson,
};
use veilgrad_ledger::{Entry, Ledger, Options};
use veilgrad_mechanism::{PartialSum, RecordVector};
use veilgrad_nn::round::SharedRound;

use crate::reader::edit::FILES;
use crate::reader::ledger::chained;
use crate::reader::{model, sum};
use crate::saved::{directory, home};
use crate::scratch;

type Made<T = ()> = Result<T, Box<dyn Error>>;

/// Writes the corpus of every target.
///
/// # Errors
/// When a file cannot be made or written.
pub fn write() -> Made {
    rows()?;
    files_of_a_ledger()?;
    rounds()?;
    models()?;
    sums()?;
    arrays()?;
    tables()?;
    commands()
}

fn put(target: &str, name: &str, bytes: impl AsRef<[u8]>) -> Made {
    let directory = directory(target);
    std::fs::create_dir_all(&directory)?;
    Ok(std::fs::write(directory.join(name), bytes)?)
}

fn budget(dataset: &str, adjacency: Adjacency, mode: Mode) -> Made<Budget> {
    Ok(Budget {
        dataset: dataset.to_owned(),
        unit: RecordUnit::Example,
        adjacency,
        delta: Delta::new(1e-5)?,
        epsilon: Epsilon::new(3.0)?,
        mode,
        order: (mode == Mode::Adaptive).then_some(8.0),
    })
}

fn some_rounds(count: u64, sampling: Sampling, noise: f64) -> Made<Rounds> {
    let query = |name: &str| -> Made<SumQuery> {
        Ok(SumQuery::new(name, ClipNorm::new(1.0)?, NoiseStd::new(noise)?))
    };
    Ok(Rounds { count, round: Round::new(sampling, vec![query("gradient")?, query("loss")?])? })
}

fn poisson(rate: f64) -> Made<Sampling> {
    Ok(Sampling::Poisson { rate: SampleRate::new(rate)? })
}

/// Ids and hashes that are always the same.
fn id(digit: char) -> String {
    digit.to_string().repeat(32)
}

fn event(dataset: &str, run: char, event: Event) -> Entry {
    Entry::Run { dataset: dataset.to_owned(), run: id(run), nonce: id('0'), event }
}

fn reserve(first_round: u64, charge: Rounds) -> Event {
    let noise = veilgrad_events::NoiseMechanism::Gaussian;
    Event::Reserve(Reservation { first_round, charge, noise })
}

/// The rows of a ledger with every kind of entry.
fn entries() -> Made<Vec<Entry>> {
    let (planned, shuffled) = ("visits", "shuffled");
    let header = |adjacency| RunHeader::new(RecordUnit::Example, adjacency);
    let batch = FixedBatch::new(100, 10)?;
    let plan = vec![some_rounds(40, poisson(0.01)?, 1.1)?, some_rounds(5, poisson(0.02)?, 1.5)?];
    let with_plan = header(Adjacency::AddRemove).with_plan(plan.clone());
    let shuffle = some_rounds(25, Sampling::Shuffle(batch), 2.0)?;
    let first = Rounds { count: 32, ..plan[0].clone() };
    let imported = |entry: Entry| -> Made<Entry> {
        let hash = Hash::default().to_string();
        Ok(Entry::Import { source: id('b'), hash, entry: Box::new(entry) })
    };
    let insecure = Insecure { reason: "seeded noise".to_owned() };
    Ok(vec![
        Entry::Create { id: id('a') },
        Entry::Budget { budget: budget(planned, Adjacency::AddRemove, Mode::Planned)? },
        Entry::Budget { budget: budget(shuffled, Adjacency::ZeroOut, Mode::Adaptive)? },
        event(planned, '1', Event::Open(with_plan)),
        event(planned, '1', reserve(0, first)),
        Entry::Recovered { anchored: 4 },
        event(shuffled, '2', Event::Open(header(Adjacency::ZeroOut))),
        event(shuffled, '2', reserve(0, shuffle.clone())),
        event(planned, '1', Event::Close(veilgrad_events::Close {})),
        Entry::Tighten { dataset: planned.to_owned(), epsilon: Epsilon::new(2.5)? },
        imported(event(shuffled, '2', reserve(3, shuffle)))?,
        imported(event(planned, '3', Event::Open(header(Adjacency::AddRemove))))?,
        imported(event(planned, '3', reserve(0, some_rounds(7, Sampling::All {}, 9.0)?)))?,
        event(shuffled, '2', Event::Insecure(insecure)),
    ])
}

fn rows() -> Made {
    let entries = entries()?;
    let texts = |entries: &[Entry]| -> Made<Vec<String>> {
        let bytes = entries.iter().map(Entry::to_bytes).collect::<Result<Vec<_>, _>>()?;
        Ok(bytes.into_iter().map(String::from_utf8).collect::<Result<_, _>>()?)
    };
    let rows = texts(&entries)?;
    for (number, row) in rows.iter().enumerate() {
        put("row", &format!("{number:02}.json"), row)?;
    }
    put("rows", "all.jsonl", rows.join("\n"))?;
    put("rows", "planned.jsonl", rows[..5].join("\n"))?;
    put(
        "rows",
        "no-plan.jsonl",
        [&rows[0], &rows[2], &rows[6], &rows[7]].map(String::as_str).join("\n"),
    )?;
    put("export", "all.jsonl", chained(&rows))?;
    put("export", "planned.jsonl", chained(&rows[..5]))
}

/// A ledger whose last charges are in the WAL and in the anchor, and edits of its files.
fn files_of_a_ledger() -> Made {
    let path = scratch::path(FILES[0]);
    for name in FILES {
        let _ = std::fs::remove_file(scratch::path(name));
    }
    let mut ledger = Ledger::create(&path, Options::default())?;
    ledger.create_budget(budget("visits", Adjacency::AddRemove, Mode::Planned)?)?;
    ledger.create_budget(budget("other", Adjacency::ZeroOut, Mode::Planned)?)?;
    let round = some_rounds(1, poisson(0.001)?, 2.0)?.round;
    let open = |ledger: Ledger| -> Made<Run<veilgrad_ledger::DatasetLedger>> {
        let store = ledger.dataset("visits", Arc::new(Tightest))?;
        Ok(Run::open(store, RunHeader::new(RecordUnit::Example, Adjacency::AddRemove))?)
    };
    let mut run = open(ledger)?;
    for _ in 0..4 {
        run.reserve(&round, 1)?;
    }
    // Closing the last handle empties the WAL into the database.
    drop(run);
    let mut run = open(Ledger::open(&path, Options::default())?)?;
    for _ in 0..20 {
        run.reserve(&round, 2)?;
    }
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    for name in FILES {
        let bytes = std::fs::read(scratch::path(name))?;
        packed.write_all(&u32::try_from(bytes.len())?.to_le_bytes())?;
        packed.write_all(&bytes)?;
    }
    std::fs::create_dir_all(home().join("base"))?;
    std::fs::write(home().join("base/ledger.gz"), packed.finish()?)?;
    for file in 0..3u8 {
        for what in 0..16u8 {
            let edit = [file, what, 16 * what, 7 * file, 0, what, 1, 0];
            let other = [(file + 1) % 3, (what + 5) % 16, 3, 40, 0, 2, 0, 0];
            let name = format!("{file}-{what:02}.edits");
            put("ledger", &name, [edit, other].concat())?;
        }
    }
    put("ledger", "none.edits", [])
}

fn rounds() -> Made {
    let batch = FixedBatch::new(1000, 50)?;
    let truncated = TruncatedPoisson::new(SampleRate::new(0.1)?, 100, 30)?;
    let grid = IntegerGrid::new(1 << 20, 21)?;
    let exact = SumQuery::exact("gradient", ClipNorm::new(0.1)?, 10, grid)?;
    let exact = Rounds { count: 100, round: Round::new(poisson(0.01)?, vec![exact])? };
    let planned = RoundsFile {
        mode: Some(Mode::Planned),
        order: None,
        runs: vec![
            vec![some_rounds(1000, poisson(0.004)?, 1.1)?, exact],
            vec![some_rounds(3, Sampling::All {}, 20.0)?],
        ],
    };
    let adaptive = RoundsFile {
        mode: Some(Mode::Adaptive),
        order: Some(8.0),
        runs: vec![vec![some_rounds(9, poisson(0.5)?, 3.0)?]],
    };
    let sized = RoundsFile {
        mode: None,
        order: None,
        runs: vec![
            vec![some_rounds(30, Sampling::Fixed(batch), 4.0)?],
            vec![some_rounds(45, Sampling::Shuffle(batch), 4.0)?],
        ],
    };
    let cut = RoundsFile {
        runs: vec![vec![some_rounds(5, Sampling::TruncatedPoisson(truncated), 1.0)?]],
        ..RoundsFile::default()
    };
    for target in ["rounds", "account"] {
        put(target, "planned.jsonl", planned.to_jsonl()?)?;
        put(target, "adaptive.jsonl", adaptive.to_jsonl()?)?;
        put(target, "sized.jsonl", sized.to_jsonl()?)?;
        put(target, "truncated.jsonl", cut.to_jsonl()?)?;
    }
    Ok(())
}

/// Partial sums of no, one and two processes, and the public state of a round.
fn sums() -> Made {
    let plan = sum::plan();
    let tag = sum::sample(&plan).tag(&plan);
    let part = |records: usize| -> Made<PartialSum> {
        let mut part = PartialSum::begin(&plan, &tag, |_| None)?;
        let values = [&[0.5, -0.25, 3.0][..], &[1.0, 0.0]].map(RecordVector::Values);
        (0..records).try_for_each(|record| part.add_weighted(&values, record as f64))?;
        Ok(part)
    };
    for records in [0, 3] {
        let bytes = part(records)?.into_bytes()?;
        put("partial-sum", &format!("{records}.sum"), bytes.expose())?;
    }
    let mut two = part(2)?;
    two.absorb_bytes(part(1)?.into_bytes()?.expose())?;
    put("partial-sum", "two.sum", two.into_bytes()?.expose())?;
    let weights = vec![vec![0.5, -1.0], vec![], vec![2.0]];
    let mut adapted = plan.adapted();
    put(
        "shared-round",
        "plain.safetensors",
        SharedRound::new(tag, adapted.clone(), false, weights).head()?,
    )?;
    adapted.estimates.insert("gradient".to_owned(), 0.125);
    put(
        "shared-round",
        "adapted.safetensors",
        SharedRound::new(tag, adapted, true, Vec::new()).head()?,
    )
}

fn models() -> Made {
    let network = model::network();
    put("weights", "plain.safetensors", network.to_safetensors()?)?;
    put("weights", "text.safetensors", network.to_safetensors_with("a text".to_owned())?)?;
    let trainer = model::trainer();
    let path = scratch::path("checkpoint.safetensors");
    let head = Head { id: id('a'), sequence: 12, hash: Hash([7; 32]) };
    for (name, head) in [("memory", None), ("ledger", Some(&head))] {
        let mut checkpoint = trainer.checkpoint(head);
        checkpoint.insert("account", b"{}".to_vec());
        checkpoint.write(&path)?;
        put("checkpoint", &format!("{name}.safetensors"), std::fs::read(&path)?)?;
    }
    // After every round, as a checkpoint holds them.
    let mut phase = model::phase();
    put("precondition", "0.safetensors", phase.to_bytes()?)?;
    let records = veilgrad_nn::InMemory::new(vec![0.5; 32], 4, vec![0.0; 8], 1);
    let mut run = Run::open(MemoryLedger::new(), phase.header(Adjacency::AddRemove))?;
    while let Some(round) = phase.event()? {
        phase.round(run.reserve(&round, 1)?.next().ok_or("no permit")?, &records)?;
        put("precondition", &format!("{}.safetensors", phase.rounds()), phase.to_bytes()?)?;
    }
    let whitening = phase.whitening().ok_or("not done")?;
    let declarations = [
        (
            r#"{"classes":2,"shape":[2,2],"bounds":[0.0,1.0],"precondition":2,"model":{"kind":"linear","input_norm":2.0,"augment":{"copies":2,"flip":true}}}"#,
            veilgrad_nn::Model::new(&[4], [veilgrad_nn::Layer::linear(2)], 1)?,
        ),
        (
            r#"{"classes":2,"shape":[4],"bounds":[0.0,1.0],"model":{"kind":"mlp","hidden":[3],"batch_norm":true}}"#,
            network.clone(),
        ),
        (
            r#"{"classes":["no","yes"],"columns":[{"name":"age","bounds":[0.0,80.0]},{"name":"colour","categories":["red","green","blue"]}],"model":{"kind":"linear"}}"#,
            veilgrad_nn::Model::new(&[4], [veilgrad_nn::Layer::linear(2)], 1)?,
        ),
    ];
    for (number, (declaration, model)) in declarations.into_iter().enumerate() {
        let declaration: serde_json::Value = serde_json::from_str(declaration)?;
        let text = serde_json::json!({
            "schema": 1,
            "insecure": false,
            "ledger": { "id": head.id, "sequence": head.sequence, "head": head.to_string() },
            "declaration": declaration,
        });
        let text = text.to_string();
        let bytes = match number {
            0 => model.to_safetensors_preconditioned(text, &whitening)?,
            _ => model.to_safetensors_with(text)?,
        };
        put("model", &format!("{number}.safetensors"), bytes)?;
    }
    Ok(())
}

fn arrays() -> Made {
    let idx = |kind: u8, shape: &[u32], data: &[u8]| {
        let lengths = shape.iter().flat_map(|length| length.to_be_bytes());
        let start = [0, 0, kind, shape.len() as u8].into_iter().chain(lengths);
        start.chain(data.iter().copied()).collect::<Vec<u8>>()
    };
    let images = idx(8, &[5, 2, 3], &[9; 30]);
    put("idx", "images", &images)?;
    put("idx", "labels", idx(8, &[5], &[0, 1, 2, 3, 4]))?;
    put("idx", "reals", idx(0x0e, &[1, 6], &[0x3f; 48]))?;
    put("idx", "halves", idx(0x0b, &[2, 6], &[1; 24]))?;
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&images)?;
    put("idx", "images.gz", packed.finish()?)?;

    let npy = |kind: &str, shape: &str, data: &[u8]| {
        let header =
            format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}\n");
        let length = (header.len() as u16).to_le_bytes();
        [b"\x93NUMPY\x01\x00".as_slice(), &length, header.as_bytes(), data].concat()
    };
    let array = npy("<f4", "2, 2, 3", &[0x3f; 48]);
    put("npy", "reals.npy", &array)?;
    put("npy", "bytes.npy", npy("|u1", "4, 6", &[3; 24]))?;
    put("npy", "labels.npy", npy(">i8", "3,", &[0; 24]))?;
    put("npy", "halves.npy", npy("<f2", "4, 6", &[0x3c; 48]))?;
    put("ids", "users.npy", npy("<i8", "4,", &[7; 32]))?;
    put("ids", "bytes.npy", npy("|u1", "4, 1", &[1, 2, 1, 9]))?;
    for (name, method) in
        [("stored", zip::CompressionMethod::Stored), ("deflated", zip::CompressionMethod::Deflated)]
    {
        let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        archive.start_file("x.npy", options)?;
        archive.write_all(&array)?;
        archive.start_file("y.npy", options)?;
        archive.write_all(b"no array")?;
        put("npz", &format!("{name}.npz"), archive.finish()?.into_inner())?;
    }
    Ok(())
}

fn tables() -> Made {
    let head = "who,sick,colour,age,height\n";
    let rows = "ann,yes,red,40,0.5\nbob,no,green,,\nann,\"no\",\"red\",1e3,-1\n,maybe,blue,x,NaN\n";
    put("csv", "table.csv", format!("{head}{rows}"))?;
    put("csv", "windows.csv", format!("\u{feff}{head}{rows}").replace('\n', "\r\n"))?;
    let line = r#"{"who":"ann","sick":"yes","colour":"red","age":40,"height":0.5}"#;
    let null = r#"{"age":null,"who":7,"sick":true,"colour":["red"],"more":{"x":[1,2]}}"#;
    put("json", "lines.jsonl", format!("{line}\n{null}\n"))?;
    put("json", "broken.jsonl", format!("\u{feff}{line}\r\n{{\"who\":\n\n[1]\n"))?;
    put("csv", "broken.csv", format!("{head}\"ann,yes,red,1,0\nann,yes\n,,,,,,\n"))?;
    #[cfg(feature = "parquet")]
    parquet()?;
    Ok(())
}

#[cfg(feature = "parquet")]
fn parquet() -> Made {
    use parquet::basic::Compression;
    use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, FloatType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    let message = "message t { REQUIRED INT64 who; REQUIRED BYTE_ARRAY sick (UTF8); \
                   REQUIRED BYTE_ARRAY colour (UTF8); OPTIONAL DOUBLE age; REQUIRED FLOAT height; }";
    let kinds = [
        ("plain", Compression::UNCOMPRESSED, false),
        ("words", Compression::UNCOMPRESSED, true),
        ("snappy", Compression::SNAPPY, true),
        ("gzip", Compression::GZIP(Default::default()), false),
    ];
    for (name, codec, dictionary) in kinds {
        let properties = WriterProperties::builder()
            .set_compression(codec)
            .set_dictionary_enabled(dictionary)
            .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
            .set_created_by(String::new());
        let kind = Arc::new(parse_message_type(message)?);
        let mut bytes = Vec::new();
        let mut writer = SerializedFileWriter::new(&mut bytes, kind, Arc::new(properties.build()))?;
        let mut group = writer.next_row_group()?;
        let text = |words: [&str; 3]| words.map(ByteArray::from);
        for place in 0..5 {
            let mut column = group.next_column()?.ok_or("a column is missing")?;
            match place {
                0 => column.typed::<Int64Type>().write_batch(&[1, 2, 1], None, None)?,
                1 | 2 => {
                    let words = [text(["yes", "no", "no"]), text(["red", "blue", "red"])];
                    column.typed::<ByteArrayType>().write_batch(&words[place - 1], None, None)?
                }
                3 => {
                    let levels = [1, 0, 1];
                    column.typed::<DoubleType>().write_batch(&[40.0, 1e3], Some(&levels), None)?
                }
                _ => column.typed::<FloatType>().write_batch(&[0.5, -1.0, 9.0], None, None)?,
            };
            column.close()?;
        }
        group.close()?;
        writer.close()?;
        put("parquet", &format!("{name}.parquet"), bytes)?;
    }
    Ok(())
}

/// A configuration for images, and one for a table.
const IMAGES: &str = r#"
[data]
train = "images-idx3-ubyte.gz"
labels = "labels-idx1-ubyte.gz"
test = "test-idx3-ubyte"
test_labels = "test-idx1-ubyte"
dataset = "images"
records = 60000
classes = 10
shape = [12, 12]
bounds = [0, 255]
missing = "zero"
record = { microbatch = 4 }
[model]
kind = "cnn"
filters = [2, 3]
hidden = [4]
seed = 7
[privacy]
noise_multiplier = 1.5
delta = 1e-5
expected_batch = 256
adjacency = "zero-out"
sampling = "fixed"
[train]
rounds = 10
optimizer = { kind = "sgd", lr = 0.6, momentum = 0.9, nesterov = true }
ema = 0.99
cosine = true
block = 8
checkpoint_rounds = 3
"#;

const TABLE: &str = r#"
[data]
train = "people.csv"
records = 1000
classes = ["no", "yes"]
label = "sick"
record = { user = "who", max_examples = 3 }
[[data.columns]]
name = "age"
bounds = [0, 100]
missing = "mean-of-bounds"
[[data.columns]]
name = "colour"
categories = ["red", "green"]
[model]
kind = "mlp"
hidden = [5]
batch_norm = true
[privacy]
epsilon = 2.0
delta = 1e-6
expected_batch = 50.5
[[privacy.groups]]
vectors = ["*"]
clip = 1.0
name = "all"
[[privacy.groups]]
vectors = ["accuracy"]
clip = 1.0
share = 0.1
[[privacy.groups]]
vectors = ["statistics"]
clip = 2.0
share = 0.1
[train]
rounds = 20
optimizer = { kind = "adamw", lr = 0.01, weight_decay = 0.1 }
"#;

const SCATTERING: &str = r#"
[data]
train = "x.npz"
arrays = { inputs = "x", labels = "y" }
records = 100
classes = 2
shape = [8, 8]
bounds = [-1.5, 1e3]
[model]
kind = "linear"
features = "scattering"
scattering = { scales = 2, orientations = 4, norm_groups = 3 }
[privacy]
epsilon = 1
delta = 1e-5
expected_batch = 10
clip = 0.5
[train]
rounds = 5
optimizer = { kind = "adam", lr = 1 }
"#;

const LAYERS: &str = r#"
[data]
train = "images.npy"
labels = "labels.npy"
calibration = "public.npy"
calibration_labels = "public-labels.npy"
records = 100
classes = 2
shape = [9, 7]
bounds = [0, 1]
record = { user_ids = "ids.npy", max_examples = 3 }
[model]
kind = "layers"
layers = [
  { kind = "conv", filters = 4, kernel = 3, stride = 2, padding = "same" }, { kind = "gelu" },
  { kind = "max-pool", size = 2, stride = 1 }, { kind = "group-norm", groups = 2 }, { kind = "flatten" },
  { kind = "linear", outputs = 5 }, { kind = "layer-norm" }, { kind = "tanh" },
]
frozen = ["conv1.*"]
[privacy]
epsilon = 1
delta = 1e-5
expected_batch = 10
[train]
epochs = 1.5
class_weights = [1.0, 2.5]
optimizer = { kind = "adam", lr = 1 }
"#;

const NUMBER: &str = r#"
[data]
train = "people.csv.gz"
records = 1000
label = "height"
label_bounds = [50, 250]
delimiter = ";"
header = ["age", "colour", "height"]
[[data.columns]]
name = "age"
bounds = [0, 100]
[[data.columns]]
name = "colour"
categories = ["red", "green"]
embedding = 3
[model]
kind = "mlp"
hidden = [5]
[privacy]
epsilon = 2.0
delta = 1e-6
expected_batch = 50
[train]
rounds = 5
huber = 10
optimizer = { kind = "sgd", lr = 0.1 }
"#;

const PRECONDITIONED: &str = r#"
[data]
train = "images.npy"
labels = "labels.npy"
records = 100
classes = 2
shape = [4, 4]
bounds = [0, 255]
[model]
kind = "linear"
input_norm = 63
[model.augment]
copies = 3
predict_copies = 2
shift = 1
flip = true
[privacy]
epsilon = 2
delta = 1e-5
expected_batch = 10
[privacy.precondition]
mean_share = 0.05
directions_share = 0.1
directions = 2
rounds = 2
floor = 0.01
[train]
rounds = 5
schedule = "linear"
optimizer = { kind = "sgd", lr = 1 }
[audit]
canaries = 10
"#;

fn commands() -> Made {
    for target in ["configuration", "job"] {
        put(target, "preconditioned.toml", PRECONDITIONED)?;
        put(target, "layers.toml", LAYERS)?;
        put(target, "number.toml", NUMBER)?;
        put(target, "images.toml", IMAGES)?;
        put(target, "table.toml", TABLE)?;
        put(target, "scattering.toml", SCATTERING)?;
    }
    let lines = [
        ("plan", "plan --records 60000 --batch 256 --steps 100 --delta 1e-5 --epsilon 3"),
        ("rate", "plan --epochs 3 --noise-multiplier 1.1 --delta 1e-5 --epsilon 3 --records 1000"),
        (
            "fixed",
            "plan --rate 0.01 --records 1000 --epochs 2 --delta 1e-5 --epsilon 1 --sampling fixed --adjacency zero-out",
        ),
        (
            "epsilon",
            "plan --rate 0.01 --steps 50 --noise-multiplier 2 --delta 1e-6 --accountant rdp --json",
        ),
        (
            "shuffle",
            "plan --solve steps --rate 0.1 --records 500 --noise-multiplier 5 --delta 1e-5 --epsilon 8 --sampling shuffle --adjacency replace-one",
        ),
        (
            "train",
            "train config.toml --out runs/a --ledger l.db --wait 3 --epsilon 2 --threads 2 --witness |cat",
        ),
        ("audit", "audit --releases 2000 --json"),
        ("audited", "audit config.toml --canaries 50 --out runs/a --ledger l.db"),
        ("account", "account rounds.jsonl --delta 1e-5 --dataset d --adjacency add-remove -q"),
        (
            "budget",
            "budget create visits --epsilon 3 --delta 1e-5 --unit microbatch:4 --mode adaptive --ledger l.db",
        ),
        (
            "verify",
            "ledger verify l.db --against aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa:7:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
        ),
        ("export", "ledger export l.db --format rounds --dataset d"),
        ("report", "report runs/a --unverified -o page.html"),
        ("help", "man ledger verify --help"),
    ];
    for (name, line) in lines {
        let words = line.replace(' ', "\n");
        put("arguments", &format!("{name}.words"), &words)?;
        if line.starts_with("plan") {
            put("plan", &format!("{name}.words"), &words)?;
        }
    }
    let audited = REPORT.replacen(
        '{',
        r#"{"audit":{"canaries":50,"guesses":20,"correct":12,"epsilon_lower":0.1,"confidence":0.95,"claimed":2.9,"delta":1e-5,"contradicted":true},"#,
        1,
    );
    put("report", "audited.json", audited)?;
    put("report", "report.json", REPORT)
}

/// A report as `veilgrad train` writes it.
const REPORT: &str = include_str!("corpus/report.json");
