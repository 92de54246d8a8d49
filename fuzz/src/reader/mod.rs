//! The fuzz targets: functions of bytes that panic when a reader panics or a property fails.

pub(crate) mod command;
pub(crate) mod data;
pub(crate) mod edit;
pub(crate) mod ledger;
pub(crate) mod model;
pub(crate) mod rounds;
pub(crate) mod sum;

use crate::mutate::Format;

/// A fuzz target: a reader and what its inputs look like.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of its corpus.
    pub name: &'static str,
    /// Reads an input; panics if the reader panics or a property of what was read fails.
    pub run: fn(&[u8]),
    /// The format of its inputs.
    pub format: Format,
    /// Words that its inputs contain, separated by semicolons.
    pub words: &'static str,
    /// Its share of all executions; slow readers get fewer.
    pub share: u64,
}

const EVENTS: &str = "kind;create;budget;tighten;run;import;recovered;event;open;reserve;insecure;close;reason;plan;\
    mode;planned;adaptive;order;rounds;sampling;policy;poisson;fixed;shuffle;truncated-poisson;all;\
    allocation;cyclic-poisson;groups;strategy;tuning;rate;records;batch;maximum;queries;group;clip;noise;grid;s_int;k;unit;example;user;microbatch;\
    examples;add-remove;replace-one;zero-out;delta;epsilon;dataset;source;hash;entry;first_round;\
    charge;head;sequence;bytes;\\u0000;\u{202e}";

const CONFIGURATION: &str = "[data];[model];[privacy];[train];[[data.columns]];[[privacy.groups]];train;labels;test;\
    test_labels;records;classes;shape;bounds;missing;record;label;columns;name;categories;kind;\
    linear;mlp;cnn;logistic;features;scattering;scales;orientations;norm_groups;hidden;filters;\
    batch_norm;epsilon;noise_multiplier;delta;expected_batch;sampling;fixed;shuffle;adjacency;\
    zero-out;clip;vectors;share;accuracy;loss;statistics;rounds;optimizer;sgd;adam;adamw;adagrad;\
    rmsprop;lr;momentum;ema;cosine;block;checkpoint_rounds;user;max_examples;microbatch;zero;\
    mean-of-bounds;a=b;\\n;*;linear1.weight;[audit];canaries;[privacy.precondition];precondition;mean_share;\
    directions_share;directions;floor;[model.augment];augment;copies;predict_copies;shift;flip;true;\
    input_norm;grid;pool_sigma;[model.scattering];schedule;epochs;class_weights;huber;label_bounds;delimiter;header;\
    user_ids;users;calibration;calibration_labels;embedding;layers;[[model.layers]];conv;kernel;stride;padding;same;\
    max-pool;average-pool;size;global-average;relu;tanh;gelu;group-norm;groups;layer-norm;batch-norm;flatten;outputs;\
    init;init_sha256;fresh;frozen;partition;dirichlet;uniform;concentration;classes_per_user;seed;local;batch;simulate;\
    availability;dropout;weights;bound;expected;denominator;[privacy.adaptive];adaptive;quantile;[privacy.correlated];\
    correlated;bands;auto;truncated;max_batch;allocation;yogi;nesterov;weight_decay;colours;mirror;arrays;inputs";

const ARGUMENTS: &str = "train;finish;check;predict;report;statement;plan;account;budget;ledger;completions;man;create;\
    show;list;tighten;verify;export;import;backup;repair;head;--json;-q;-vvv;--witness;--ledger;\
    --out;--resume;--epsilon;--delta;--rate;--records;--batch;--steps;--epochs;--solve;\
    --noise-multiplier;--sampling;--adjacency;--accountant;--against;--format;--unit;microbatch:4;\
    --mode;--help;--version;--;-;=;--threads;--wait;audit;--canaries;--releases;--overwrite;--new-budget;poisson;fixed;shuffle;all;noise;rate;steps;\
    epsilon;add-remove;replace-one;zero-out;pld;rdp;bash;init;evaluate;compare;serve;tune;move;migration;truncated;\
    allocation;onnx;--to;--port;--vary;--mean-runs;--distribution;geometric;logarithmic;--group;--prior;\
    --public-sample;--max-batch;postgres://u:p@h/d;\u{1f980}";

const TABLE: &str = "who;sick;colour;age;yes;no;red;green;ann;\";\"\";,;\r\n;\n;\u{feff}; ;PAR1";

const ARRAY: &str =
    "'descr';'fortran_order';'shape';<f2;<f4;>f8;|u1;<i8;True;False;(;);x.npy;PK;\u{1f980}";

const TENSOR: &str = "__metadata__;veilgrad;dtype;F32;U8;F64;BF16;shape;data_offsets;model/linear1.weight;\
    average/linear1.bias;optimizer;format;round;adapted;quantile/gradient;clip/gradient;ledger;\
    sequence;hash;linear1.weight;schema;declaration;classes;hidden;=;\\n;canaries;precondition;done;mean;directions;\
    variances;precondition.mean;precondition.directions;precondition.scales;augment;copies;input_norm;tag;rounds;\
    estimate/gradient;weight/0";

/// All fuzz targets.
pub const TARGETS: &[Target] = &[
    target("row", ledger::row, Format::Text, EVENTS, 800),
    target("rows", ledger::rows, Format::Text, EVENTS, 160),
    target("export", ledger::export, Format::Text, EVENTS, 240),
    target("ledger", edit::ledger, Format::Binary, "", 4),
    target("checkpoint", model::checkpoint, Format::Safetensors, TENSOR, 240),
    target("weights", model::weights, Format::Safetensors, TENSOR, 320),
    target("model", model::trained, Format::Safetensors, TENSOR, 240),
    target("precondition", model::precondition, Format::Safetensors, TENSOR, 120),
    target("partial-sum", sum::partial, Format::Binary, "VGSUM", 240),
    target("shared-round", sum::round, Format::Safetensors, TENSOR, 120),
    target("idx", data::idx, Format::Binary, "", 360),
    target("npy", data::npy, Format::Npy, ARRAY, 360),
    target("npz", data::npz, Format::Binary, ARRAY, 200),
    target("csv", data::csv, Format::Csv, TABLE, 360),
    target("json", data::json, Format::Text, TABLE, 240),
    target("ids", data::ids, Format::Npy, ARRAY, 120),
    #[cfg(feature = "parquet")]
    target("parquet", data::parquet, Format::Binary, TABLE, 160),
    target("configuration", command::configuration, Format::Text, CONFIGURATION, 200),
    target("job", command::job, Format::Text, CONFIGURATION, 1),
    target("rounds", rounds::rounds, Format::Text, EVENTS, 240),
    target("account", rounds::account, Format::Text, EVENTS, 1),
    target("arguments", command::arguments, Format::Text, ARGUMENTS, 56),
    target("plan", command::plan, Format::Text, ARGUMENTS, 1),
    target("report", command::report, Format::Text, "null;epsilon;groups", 80),
];

const fn target(
    name: &'static str,
    run: fn(&[u8]),
    format: Format,
    words: &'static str,
    share: u64,
) -> Target {
    Target { name, run, format, words, share }
}
