"""Estimators: what scikit-learn asks of them, what they promise, and tables from anywhere."""

import gzip
import os
import pickle
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import veilgrad
from veilgrad.sklearn import VeilgradClassifier, VeilgradRegressor

MNIST = Path(__file__).parents[3] / "data/mnist"

# Noise decides what two fits have in common.
RANDOM = "two fits of a private estimator differ"
EXCLUDED = {
    "check_sample_weight_equivalence_on_dense_data": RANDOM,
    "check_fit_idempotent": RANDOM,
    "check_classifier_data_not_an_array": RANDOM,
    "check_regressor_data_not_an_array": RANDOM,
    "check_regressors_int": RANDOM,
    "check_supervised_y_2d": RANDOM,
    # Whether there is one must not be seen.
    "check_supervised_y_no_nan": "a bad record contributes zero and raises nothing",
}
PUBLIC = dict(epsilon=1000.0, delta=1e-2, bounds="public", records="public", rounds=50, batch=64)


@parametrize_with_checks(
    [
        VeilgradClassifier(**PUBLIC, classes="public"),
        VeilgradRegressor(**PUBLIC, target_bounds="public"),
    ],
    expected_failed_checks=lambda estimator: EXCLUDED,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def points(count=3000, seed=4):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (count, 3))
    return X, np.where(X[:, 0] - X[:, 1] > 0.2, "yes", "no")


def classifier(**options):
    options = dict(epsilon=2.0, classes=["no", "yes"], bounds=(-2, 2), records=3000) | options
    return VeilgradClassifier(**options)


def test_a_classifier_learns_and_says_what_it_promises():
    X, y = points()
    model = classifier().fit(X, y)
    assert model.score(*points(seed=5)) > 0.9
    report = model.report_()
    assert report["epsilon"] <= 2.0 and report["conditions"] == []
    assert "differential privacy" in model.statement_() and "in memory" in model.statement_()
    assert np.allclose(model.predict_proba(X).sum(axis=1), 1)
    assert np.array_equal(model.predict(X), model.classes_[(model.decision_function(X) > 0).astype(int)])
    hidden = classifier(hidden=(8,), epsilon=8.0).fit(X, y)
    assert hidden.score(X, y) > 0.8


def test_a_regressor_learns():
    X, _ = points()
    y = 3.0 * X[:, 0] - X[:, 2] + 5.0
    model = VeilgradRegressor(4.0, target_bounds=(-3, 13), bounds=(-2, 2), records=3000).fit(X, y)
    assert model.score(X, y) > 0.7 and model.report_()["epsilon"] <= 4.0


@pytest.mark.parametrize("name", ["classes", "bounds", "records"])
def test_what_data_could_decide_must_be_declared(name):
    with pytest.raises(ValueError, match=name):
        classifier(**{name: None}).fit(*points())
    with pytest.raises(ValueError, match=name):
        classifier(**{name: "data"}).fit(*points())
    model = classifier(**{name: "public"}, rounds=5).fit(*points())
    assert any("does not cover" in condition for condition in model.report_()["conditions"])
    assert "does not cover" in model.statement_()


def test_bad_records_contribute_zero_and_raise_nothing():
    X, y = points()
    X[0, 0], X[1, 1] = np.nan, np.inf
    y = y.astype(object)
    y[2], y[3] = "maybe", None
    model = classifier().fit(X, y)
    assert np.all(np.isfinite(model._weights[0][0])) and model.score(*points(seed=6)) > 0.85


def test_values_beyond_the_bounds_are_clamped():
    X, y = points(200)
    model = classifier(rounds=5).fit(X, y)
    far = np.where(X > 0, 1e9, -1e9)
    assert np.allclose(model.decision_function(far), model.decision_function(np.clip(far, -2, 2)))


def test_a_ledger_is_charged_and_keeps_the_budget(tmp_path):
    X, y = points()
    model = classifier(ledger=tmp_path / "ledger.db", dataset="points").fit(X, y)
    assert model.report_()["epsilon"] == veilgrad.claim(tmp_path / "ledger.db").epsilon <= 2.0
    assert model.report_()["numerics"] == "exact" and "points" in model.statement_()
    with pytest.raises(veilgrad.BudgetExhausted):
        clone(model).fit(X, y)
    with pytest.raises(ValueError, match="name of the dataset"):
        classifier(ledger=tmp_path / "ledger.db").fit(X, y)


def test_pipelines_clones_pickles_and_cross_validation():
    X, y = points()
    pipeline = make_pipeline(FunctionTransformer(lambda X: X / 2), classifier(bounds=(-1, 1)))
    assert pipeline.fit(X, y).score(X, y) > 0.85
    assert cross_val_score(classifier(records=2000), X, y, cv=3).min() > 0.8
    model = classifier(rounds=5).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(X), model.predict(X))
    assert clone(model).get_params()["bounds"] == (-2, 2)


def frames():
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    pyarrow = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(7)
    age = rng.uniform(0, 100, 2000)
    ward = rng.choice(["surgery", "medicine", "other"], 2000)
    y = (age > 60) | (ward == "surgery")
    columns = {"age": age, "ward": ward.tolist()}
    words = pandas.DataFrame(columns)
    return y, {
        "dict": columns,
        "pandas": words,
        "pandas category": words.assign(ward=words["ward"].astype("category")),
        "polars": polars.DataFrame(columns),
        "polars category": polars.DataFrame(columns).with_columns(polars.col("ward").cast(polars.Categorical)),
        "polars slice": polars.concat([polars.DataFrame(columns)[:700], polars.DataFrame(columns)[700:]], rechunk=False),
        "arrow": pyarrow.table(columns),
        "arrow dictionary": pyarrow.table({**columns, "ward": pyarrow.array(columns["ward"]).dictionary_encode()}),
        "arrow slice": pyarrow.concat_tables([pyarrow.table(columns), pyarrow.table(columns)]).slice(2000),
    }


def test_tables_of_every_kind_are_the_same_numbers():
    y, tables = frames()
    model = VeilgradClassifier(
        4.0,
        classes=[False, True],
        bounds={"age": (0, 100)},
        categories={"ward": ["surgery", "medicine", "other"]},
        records=2000,
    )
    model.fit(tables["pandas"], y)
    assert model.score(tables["pandas"], y) > 0.85 and model.n_features_in_ == 2
    expected = model.decision_function(tables["dict"])
    for name, table in tables.items():
        assert np.array_equal(model.decision_function(table), expected), name
    with pytest.raises(ValueError, match="neither bounds nor categories"):
        clone(model).fit({**tables["dict"], "name": ["x"] * 2000}, y)


def test_missing_cells_are_missing_in_every_kind_of_table():
    polars, pyarrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    from veilgrad import _table

    columns = {
        "n": [1, None, 3, 4, None, 6, 7, 8, 9],
        "f": [None, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5],
        "b": [True, False, None, True, True, False, False, True, True],
        "s": ["short", None, "a word that is longer than twelve bytes", "", "é", "x", "y", "z", None],
    }
    for make in (polars.DataFrame, pyarrow.table):
        found = _table.columns(make(columns))
        for name in ("n", "f", "b"):
            expected = np.array([np.nan if cell is None else float(cell) for cell in columns[name]])
            assert np.array_equal(found[name], expected, equal_nan=True), name
        assert found["s"].tolist() == columns["s"]
    with pytest.raises(TypeError, match="not supported"):
        _table.columns(pyarrow.table({"d": pyarrow.array([[1, 2]])}))


def mnist():
    def read(name, skip):
        return np.frombuffer(gzip.open(MNIST / name).read()[skip:], np.uint8)

    for part in ("train", "t10k"):
        y = read(f"{part}-labels-idx1-ubyte.gz", 8)
        X = read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784)
        kept = np.isin(y, [3, 8])
        yield X[kept], y[kept]


def test_mnist_3_against_8_at_epsilon_1():
    (X, y), (test, labels) = mnist()
    model = VeilgradClassifier(1.0, 1e-5, classes=[3, 8], bounds=(0, 255), records=12000)
    accuracy = model.fit(X, y).score(test, labels)
    assert model.report_()["epsilon"] <= 1.0 and accuracy >= 0.95, accuracy


def test_ctrl_c_stops_a_fit_and_keeps_what_was_charged(tmp_path):
    X, y = points()
    ledger = tmp_path / "ledger.db"
    model = classifier(rounds=100_000, ledger=ledger, dataset="points")
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    timer.join()
    assert veilgrad.claim(ledger).spent > 0
