"""Trained models in other programs: ONNX Runtime and PyTorch give the same probabilities, scikit-learn the same metrics.

VEILGRAD_COMMAND names the command, if it is not the one that is installed with the package.
"""

import csv
import gzip
import json
import os
import re
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).parents[3]
COMMAND = os.environ.get("VEILGRAD_COMMAND") or Path(sysconfig.get_path("scripts")) / "veilgrad"

PRIVACY = """
[privacy]
noise_multiplier = 0.6
delta = 1e-5
expected_batch = 100
{groups}
[train]
rounds = {rounds}
optimizer = {{ kind = "sgd", lr = {lr}, momentum = 0.5 }}
"""

TABLE = """
[data]
train = "train.csv"
label = "class"
classes = ["no", "yes"]
records = 400
[[data.columns]]
name = "x"
bounds = [-2, 3]
missing = "mean-of-bounds"
[[data.columns]]
name = "colour"
categories = ["red", "green", "blue"]
missing = "blue"
[[data.columns]]
name = "year"
bounds = [1900, 2030]
[[data.columns]]
name = "word"
categories = ["a", "b"]
"""

# The same table with embedded columns, and with a number as its label.
EMBEDDED = TABLE.replace('"blue"]\n', '"blue"]\nembedding = 3\n').replace('categories = ["a", "b"]', 'categories = ["a", "b"]\nembedding = 2')
NUMBER, PLAIN_NUMBER, PRICE = (
    table.replace('label = "class"\nclasses = ["no", "yes"]', f'label = "{label}"\nlabel_bounds = {bounds}')
    for table, label, bounds in ((EMBEDDED, "length", "[-8, 8]"), (TABLE, "length", "[-8, 8]"), (TABLE, "price", "[0, 500000]"))
)

IMAGES = """
[data]
train = "{train}"
labels = "{labels}"
classes = 10
records = 400
shape = {shape}
bounds = [0, 255]
{more}
"""

# Name, data, model, groups of parameters. A model whose label is a number is not among them.
MODELS = {
    "linear-table": ("table", 'kind = "linear"', ""),
    "mlp-table": ("table", 'kind = "mlp"\nhidden = [7, 5]\ninput_norm = 2.0', ""),
    "batch-norm-table": (
        "table",
        'kind = "mlp"\nhidden = [6]\nbatch_norm = true',
        '[[privacy.groups]]\nvectors = ["linear*", "batch_norm1.s*"]\nclip = 1.0\n'
        '[[privacy.groups]]\nvectors = ["statistics"]\nclip = 2.0\nshare = 0.2',
    ),
    "embedded-table": ("embedded", 'kind = "mlp"\nhidden = [6]', ""),
    "linear-mnist": ("mnist", 'kind = "linear"', ""),
    "linear-holes": ("holes", 'kind = "linear"', ""),
    "layers-table": (
        "table",
        'kind = "layers"\nlayers = [{ kind = "linear", outputs = 8 }, { kind = "gelu" }, { kind = "layer-norm" }, '
        '{ kind = "linear", outputs = 6 }, { kind = "group-norm", groups = 2 }, { kind = "tanh" }]',
        "",
    ),
    "layers-colours": (
        "colours",
        'kind = "layers"\nlayers = [{ kind = "conv", filters = 6, kernel = 3, stride = 2, padding = "same" }, { kind = "gelu" }, '
        '{ kind = "group-norm", groups = 3 }, { kind = "average-pool", size = 2, stride = 1 }, '
        '{ kind = "conv", filters = 4, kernel = 2 }, { kind = "tanh" }, { kind = "layer-norm" }]',
        "",
    ),
    "global-colours": (
        "colours",
        'kind = "layers"\nlayers = [{ kind = "conv", filters = 8, kernel = 4, stride = 3, padding = "same" }, { kind = "relu" }, '
        '{ kind = "max-pool", size = 2 }, { kind = "global-average" }, { kind = "linear", outputs = 7 }, { kind = "relu" }]',
        "",
    ),
    "cnn-mnist": ("mnist", 'kind = "cnn"', ""),
    "cnn-colours": ("colours", 'kind = "cnn"\nfilters = [4, 5]\nhidden = [8]', ""),
    "copies-mnist": (
        "mnist",
        'kind = "cnn"\nfilters = [4, 4]\naugment = { copies = 1, predict_copies = 7, shift = 1, flip = true }',
        "",
    ),
    "scattering-mnist": ("mnist", 'kind = "linear"\nfeatures = "scattering"\ninput_norm = 10.0', ""),
    "scattering-colours": (
        "colours",
        'kind = "mlp"\nhidden = [9]\nfeatures = "scattering"\nscattering = { scales = 1, orientations = 3, norm_groups = 5 }',
        "",
    ),
    "opponent-colours": (
        "colours",
        'kind = "linear"\nfeatures = "scattering"\ninput_norm = 10.0\n'
        'scattering = { scales = 2, orientations = 4, colours = "opponent", norm_groups = 9 }',
        "",
    ),
    "mirror-colours": (
        "colours",
        'kind = "linear"\nfeatures = "scattering"\ninput_norm = 10.0\n'
        'scattering = { scales = 2, orientations = 4, grid = 4, pool_sigma = 1.5, mirror = true, norm_groups = 25 }',
        "",
    ),
    "opponent-mirror-colours": (
        "colours",
        'kind = "linear"\nfeatures = "scattering"\ninput_norm = 10.0\nscattering = { scales = 2, orientations = 3, '
        'colours = "opponent", grid = 3, pool_sigma = 1.5, mirror = true, norm_groups = 16 }',
        "",
    ),
    "whitened-colours": (
        "colours",
        'kind = "linear"\nfeatures = "scattering"\ninput_norm = 20.0\n'
        'scattering = { scales = 2, orientations = 3, colours = "opponent", grid = 3, pool_sigma = 1.5, norm_groups = 16 }',
        "[privacy.precondition]\ndirections = 4\nrounds = 1",
    ),
    "whitened-pixels": ("mnist", 'kind = "linear"\ninput_norm = 10.0', "[privacy.precondition]\ndirections = 4\nrounds = 1"),
    "whitened-mnist": (
        "mnist",
        'kind = "linear"\nfeatures = "scattering"\ninput_norm = 63.0\n'
        "scattering = { scales = 3, orientations = 6, grid = 7, pool_sigma = 1.8, norm_groups = 127 }",
        "[privacy.precondition]\ndirections = 4\nrounds = 1",
    ),
}


# Models whose label is a number.
REGRESSIONS = {
    "linear-number": ("plain-number", 'kind = "linear"', ""),
    "mlp-number": ("number", 'kind = "mlp"\nhidden = [6]', ""),
    "linear-price": ("price", 'kind = "linear"', ""),
}
# The labels of these, and the widths of their bounds.
LABELS = {"plain-number": ("length", 16), "number": ("length", 16), "price": ("price", 500_000)}


def veilgrad(place, *words):
    found = subprocess.run(
        [COMMAND, *map(str, words)],
        cwd=place,
        capture_output=True,
        text=True,
        env={**os.environ, "VEILGRAD_LEDGER": str(place / "ledger.db")},
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def write_table(path, seed, count):
    random = np.random.default_rng(seed)
    rows = ["id,x,colour,year,word,length,price,class"]
    # Not numbers, although Python reads some of them.
    not_numbers = ["", "nan", "1_0", " 0.5 ", "1e", "."]
    for number in range(count):
        x, year = random.normal(0.5, 1.5), random.uniform(1890, 2040)
        colour = random.choice(["red", "green", "blue", "mauve"])
        word = random.choice(["a", "b", "c"])
        shown = random.choice(not_numbers) if random.random() < 0.15 else f"{x:.6f}"
        label = "yes" if x + (colour == "red") + (word == "a") > 1 else "no"
        # In tenths, which single precision does not have exactly.
        length = round(x + 2 * (colour == "red") + (word == "a"), 1)
        price = round(200_000 + 40_000 * length + 0.1 * number, 1)
        rows.append(f"n{number},{shown},{colour},{year:.3f},{word},{length},{price},{label}")
    path.write_text("\n".join(rows) + "\n")


def read_idx(path):
    raw = gzip.open(path).read()
    axes = raw[3]
    shape = np.frombuffer(raw, ">i4", axes, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """Private and public files of every kind of data."""
    place = tmp_path_factory.mktemp("exchange")
    write_table(place / "train.csv", 1, 400)
    write_table(place / "public.csv", 2, 150)
    mnist = REPOSITORY / "data/mnist"
    images, labels = (read_idx(mnist / f"t10k-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1"))
    random = np.random.default_rng(3)
    for name, part in (("train", slice(0, 400)), ("public", slice(400, 520))):
        np.save(place / f"mnist-{name}.npy", images[part].astype(np.float32))
        np.save(place / f"mnist-{name}-labels.npy", labels[part].astype(np.float32))
        grey = images[part, ::2, 1::2].astype(np.float32)[..., None]
        colours = np.clip(grey * random.uniform(0.2, 1.2, (len(grey), 1, 1, 3)), 0, 300).astype(np.float32)
        np.save(place / f"colours-{name}.npy", colours)
        np.save(place / f"colours-{name}-labels.npy", labels[part].astype(np.float32))
        holes = images[part].astype(np.float32)
        holes[random.random(holes.shape) < 0.1] = np.nan
        np.save(place / f"holes-{name}.npy", holes)
        np.save(place / f"holes-{name}-labels.npy", labels[part].astype(np.float32))
    return place


TABLES = {"table": TABLE, "embedded": EMBEDDED, "number": NUMBER, "plain-number": PLAIN_NUMBER, "price": PRICE}


def files(place, data):
    """The public examples of some data, and options that name their labels."""
    if data in TABLES:
        return place / "public.csv", []
    return place / f"{data}-public.npy", ["--labels", place / f"{data}-public-labels.npy"]


@pytest.fixture(scope="session")
def trained(place):
    """Trains a model the first time it is asked for."""

    def train(name):
        model = place / f"runs/{name}/model.safetensors"
        if not model.exists():
            data, kind, groups = MODELS.get(name) or REGRESSIONS[name]
            text = TABLES[data] if data in TABLES else IMAGES.format(
                train=f"{data}-train.npy",
                labels=f"{data}-train-labels.npy",
                shape="[14, 14, 3]" if data == "colours" else "[28, 28]",
                more='missing = "mean-of-bounds"' if data == "holes" else "",
            )
            privacy = PRIVACY.format(groups=groups, rounds=20, lr=0.3 if data in TABLES else 1.0)
            if "precondition" in groups:
                privacy = privacy.replace("noise_multiplier = 0.6", "epsilon = 50.0")
            config = f'{text}\n[model]\n{kind}\n{privacy}'.replace("[data]", f'[data]\ndataset = "{name}"')
            (place / f"{name}.toml").write_text(config)
            veilgrad(place, "train", f"{name}.toml", "--quiet")
        return model

    return train


def predictions(place, model, data):
    found = json.loads(veilgrad(place, "predict", model, files(place, data)[0], "--probabilities", "--json"))
    return np.array([row["probabilities"] for row in found["predictions"]], dtype=np.float64)


# The numbers that a cell may hold; Python's `float` takes more.
PLAIN = re.compile(r"[+-]?(inf|infinity|(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)", re.ASCII | re.IGNORECASE)


def onnx_inputs(place, data, described):
    """The public examples as the input of an exported model, as the documentation says."""
    if data not in TABLES:
        return np.load(files(place, data)[0])
    rows = [line.split(",") for line in files(place, data)[0].read_text().splitlines()]
    header, rows = rows[0], rows[1:]
    columns = []
    for column in described["columns"]:
        cells = [row[header.index(column["name"])] for row in rows]
        if column["words"] is None:
            columns.append([float(cell) if PLAIN.fullmatch(cell) else np.nan for cell in cells])
        else:
            columns.append([column["words"].index(cell) if cell in column["words"] else -1 for cell in cells])
    return np.array(columns, dtype=np.float64).T


@pytest.mark.parametrize("name", MODELS)
def test_onnx_runtime_gives_the_same_probabilities(place, trained, name):
    runtime = pytest.importorskip("onnxruntime")
    data, model = MODELS[name][0], trained(name)
    described = json.loads(veilgrad(place, "export", model, "--to", "onnx", "-o", f"{name}.onnx", "--json"))
    session = runtime.InferenceSession(str(place / f"{name}.onnx"), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert given.name == described["input"]["name"]
    examples = onnx_inputs(place, data, described)
    logits, found = session.run(["logits", "probabilities"], {given.name: examples})
    expected = predictions(place, model, data)
    # A model that always says the same would hide errors.
    assert expected.std(axis=0).max() > 0.01
    difference = np.abs(found - expected).max()
    log = np.abs(logits - logits.mean(1, keepdims=True) - np.log(expected) + np.log(expected).mean(1, keepdims=True)).max()
    print(f"\n{name}: probabilities differ by {difference:.2e}, logits by {log:.2e} of {np.abs(logits).max():.1f}")
    assert difference < 1e-5
    assert log < 1e-5 * max(1.0, np.abs(logits).max())
    # One example alone has the same result.
    alone = session.run(["probabilities"], {given.name: examples[:1]})[0]
    assert np.abs(alone - found[:1]).max() < 1e-5


@pytest.mark.parametrize("name", REGRESSIONS)
def test_onnx_runtime_gives_the_same_numbers(place, trained, name):
    runtime = pytest.importorskip("onnxruntime")
    data, model = REGRESSIONS[name][0], trained(name)
    described = json.loads(veilgrad(place, "export", model, "--to", "onnx", "-o", f"{name}.onnx", "--json"))
    session = runtime.InferenceSession(str(place / f"{name}.onnx"), providers=["CPUExecutionProvider"])
    examples = onnx_inputs(place, data, described)
    (found,) = session.run(["value"], {session.get_inputs()[0].name: examples})
    assert found.shape == (len(examples), 1)
    predicted = json.loads(veilgrad(place, "predict", model, files(place, data)[0], "--json"))
    expected = np.array([row["value"] for row in predicted["predictions"]])
    width = LABELS[data][1]
    assert expected.std() > 0.003 * width
    difference = np.abs(found[:, 0] - expected).max()
    print(f"\n{name}: values differ by {difference:.2e} of {np.abs(expected).max():.1f}")
    assert difference < 1e-5 * width


@pytest.mark.parametrize("name", REGRESSIONS)
def test_errors_of_numbers_are_those_of_scikit_learn(place, trained, name):
    metrics = pytest.importorskip("sklearn.metrics")
    data, model = REGRESSIONS[name][0], trained(name)
    public = files(place, data)[0]
    found = json.loads(veilgrad(place, "evaluate", model, public, "--json"))
    predicted = json.loads(veilgrad(place, "predict", model, public, "--json"))
    expected = np.array([row["value"] for row in predicted["predictions"]])
    truth = np.array([float(row[LABELS[data][0]]) for row in csv.DictReader(public.open())])
    pairs = {
        "mean_absolute_error": metrics.mean_absolute_error(truth, expected),
        "root_mean_squared_error": metrics.mean_squared_error(truth, expected) ** 0.5,
        "r2": metrics.r2_score(truth, expected),
    }
    differences = {key: abs(found[key] - value) for key, value in pairs.items()}
    print(f"\n{name}: largest difference {max(differences.values()):.2e}")
    assert max(differences.values()) < 1e-9, differences


@pytest.mark.parametrize("name", ["linear-table", "cnn-mnist"])
def test_an_example_that_is_not_a_number_has_no_prediction(place, trained, name):
    runtime = pytest.importorskip("onnxruntime")
    data, model = MODELS[name][0], trained(name)
    described = json.loads(veilgrad(place, "export", model, "--to", "onnx", "-o", f"{name}.onnx", "--json"))
    session = runtime.InferenceSession(str(place / f"{name}.onnx"), providers=["CPUExecutionProvider"])
    examples = onnx_inputs(place, data, described)[:2].copy()
    # The year of a table has no replacement for missing cells.
    examples[(0, 2) if data == "table" else (0, 3, 4)] = np.nan
    found = session.run(["probabilities"], {session.get_inputs()[0].name: examples})[0]
    assert np.isnan(found[0]).all() and np.isfinite(found[1]).all()


@pytest.mark.parametrize("name", ["linear-table", "batch-norm-table", "embedded-table", "cnn-mnist", "scattering-mnist"])
def test_metrics_are_those_of_scikit_learn(place, trained, name):
    metrics = pytest.importorskip("sklearn.metrics")
    calibration = pytest.importorskip("sklearn.calibration")
    data, model = MODELS[name][0], trained(name)
    public, labels = files(place, data)
    found = json.loads(veilgrad(place, "evaluate", model, public, *labels, "--json"))
    expected = predictions(place, model, data)
    if data in TABLES:
        rows = [line.split(",") for line in public.read_text().splitlines()[1:]]
        truth = np.array([["no", "yes"].index(row[-1]) for row in rows])
    else:
        truth = np.load(labels[1]).astype(int)
    predicted, classes = expected.argmax(axis=1), list(range(expected.shape[1]))
    precision, recall, f1, support = metrics.precision_recall_fscore_support(truth, predicted, labels=classes, zero_division=0)
    two = len(classes) == 2
    if two:
        area = metrics.roc_auc_score(truth, expected[:, 1])
        right, score = truth, expected[:, 1]
    else:
        area = metrics.roc_auc_score(truth, expected, multi_class="ovr", labels=classes)
        right, score = (truth == predicted).astype(int), expected.max(axis=1)
    fraction, probability = calibration.calibration_curve(right, score, n_bins=10)
    bins = [bin for bin in found["calibration"]["bins"] if bin["count"]]
    counts = np.array([bin["count"] for bin in bins])
    pairs = {
        "accuracy": (found["accuracy"], metrics.accuracy_score(truth, predicted)),
        "precision": ([each["precision"] for each in found["classes"]], precision),
        "recall": ([each["recall"] for each in found["classes"]], recall),
        "f1": ([each["f1"] for each in found["classes"]], f1),
        "support": ([each["support"] for each in found["classes"]], support),
        "macro f1": (found["macro"]["f1"], f1.mean()),
        "auc": (found["auc"], area),
        "confusion": (found["confusion_matrix"], metrics.confusion_matrix(truth, predicted, labels=classes)),
        "log loss": (found["log_loss"], metrics.log_loss(truth, expected, labels=classes)),
        "Brier": (found["brier"], metrics.brier_score_loss(truth, expected[:, 1]) if two else np.mean(
            np.sum((expected - np.eye(len(classes))[truth]) ** 2, axis=1))),
        "fractions": ([bin["fraction"] for bin in bins], fraction),
        "bin probabilities": ([bin["probability"] for bin in bins], probability),
        "calibration error": (found["calibration"]["error"], np.sum(counts * np.abs(fraction - probability)) / len(truth)),
    }
    differences = {key: float(np.abs(np.asarray(ours, float) - np.asarray(theirs, float)).max()) for key, (ours, theirs) in pairs.items()}
    print(f"\n{name}: largest difference {max(differences.values()):.2e}")
    assert max(differences.values()) < 1e-9, differences


TORCH = [name for name, (_, model, _) in MODELS.items() if "scattering" not in model and "copies" not in model]


def outputs_in_torch(place, data, path):
    """The description of a network, and the outputs of the loader in the documentation for the public examples."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    page = (REPOSITORY / "docs/model-format.md").read_text()
    namespace = {}
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/model-format.md", "exec"), namespace)
    model, network = namespace["load"](path)
    public = files(place, data)[0]
    if data in TABLES:
        with open(public) as file:
            examples = namespace["encode"](network, list(csv.DictReader(file)))
    else:
        examples = torch.tensor(np.load(public))
    return namespace, network, model(examples)


@pytest.mark.parametrize("name", TORCH)
def test_the_loader_for_torch_in_the_documentation_gives_the_same_probabilities(place, trained, name):
    data, path = MODELS[name][0], trained(name)
    _, _, outputs = outputs_in_torch(place, data, path)
    found = outputs.double().softmax(1).numpy()
    difference = np.abs(found - predictions(place, path, data)).max()
    print(f"\n{name}: probabilities differ by {difference:.2e}")
    assert difference < 1e-5


@pytest.mark.parametrize("name", REGRESSIONS)
def test_the_loader_for_torch_in_the_documentation_gives_the_same_numbers(place, trained, name):
    data, path = REGRESSIONS[name][0], trained(name)
    namespace, network, outputs = outputs_in_torch(place, data, path)
    found = namespace["number"](network, outputs).numpy()
    predicted = json.loads(veilgrad(place, "predict", path, files(place, data)[0], "--json"))
    expected = np.array([row["value"] for row in predicted["predictions"]])
    difference = np.abs(found - expected).max()
    print(f"\n{name}: values differ by {difference:.2e} of {np.abs(expected).max():.1f}")
    assert difference < 1e-5 * LABELS[data][1]
