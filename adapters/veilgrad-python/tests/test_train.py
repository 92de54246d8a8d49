"""The main job in this process: results, Ctrl-C, budgets."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import veilgrad

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def data(tmp_path):
    """Two classes of points, private and public."""
    rng = np.random.default_rng(3)
    for name, count in [("train", 600), ("test", 200)]:
        x = rng.uniform(0, 10, (count, 4)).astype(np.float32)
        np.save(tmp_path / f"{name}.npy", x)
        np.save(tmp_path / f"{name}-labels.npy", (x[:, 0] > x[:, 1]).astype(np.float32))
    return tmp_path


def config(data, **train):
    return {
        "data": {
            "train": data / "train.npy",
            "labels": data / "train-labels.npy",
            "test": data / "test.npy",
            "test_labels": data / "test-labels.npy",
            "dataset": "points",
            "records": 600,
            "classes": ["below", "above"],
            "shape": [4],
            "bounds": [0.0, 10.0],
        },
        "model": {"kind": "linear"},
        "privacy": {"epsilon": 3.0, "delta": 1e-5, "expected_batch": 100},
        "train": {"rounds": 60, "optimizer": {"kind": "sgd", "lr": 1.0}, **train},
    }


def test_a_dict_becomes_a_model_a_report_and_a_ledger(data, capfd):
    seen = []
    result = veilgrad.train(
        config(data),
        out=data / "out",
        ledger=data / "ledger.db",
        progress=lambda done, rounds: seen.append((done, rounds)),
    )
    assert capfd.readouterr().out == ""
    assert seen[-1] == (60, 60)
    assert result.epsilon <= 3.0 and result.report["rounds"] == 60
    assert result.report["test_accuracy"] > 0.8
    assert "epsilon" in result.statement and result.ledger.samefile(data / "ledger.db")
    assert veilgrad.claim(result.ledger, "points").epsilon == result.epsilon
    assert "<iframe" in result._repr_html_() and "epsilon" in result._repr_html_()
    weights = result.weights
    assert sum(values.size for values in weights.values()) == 4 * 2 + 2
    assert all(values.dtype == np.float32 for values in weights.values())

    # Predictions are those of the command.
    test = np.load(data / "test.npy")
    found = result.predict(test)
    assert set(found) == {"below", "above"}
    labels = np.where(np.load(data / "test-labels.npy") > 0, "above", "below")
    assert (found == labels).mean() == result.report["test_accuracy"]
    words = ["predict", data / "out/model.safetensors", data / "test.npy", "--json"]
    out = subprocess.run([sys.executable, "-m", "veilgrad", *words], capture_output=True, check=True)
    predictions = json.loads(out.stdout)["predictions"]
    assert [row["class"] for row in predictions] == found.tolist()
    assert np.allclose([row["probability"] for row in predictions], result.predict_proba(test).max(axis=1))
    bad = test.copy()
    bad[0, 0] = np.nan
    assert np.isnan(result.predict_proba(bad)[0]).all()

    # The configuration is kept, and the budget is spent.
    assert (data / "out/config.toml").exists()
    with pytest.raises(veilgrad.BudgetExhausted, match="not opened"):
        veilgrad.train(config(data), out=data / "again", ledger=data / "ledger.db")
    reread = veilgrad.Result(data / "out")
    assert reread.report == result.report and "Result(" in repr(reread)


def test_a_path_and_a_table(data):
    path = REPOSITORY / "examples/tabular.toml"
    result = veilgrad.train(path, out=data / "out", ledger=data / "ledger.db", threads=1)
    table = {"age": [50, 20, None], "days": [3, "x", 30], "ward": ["surgery", "other", "nowhere"]}
    (data / "new.csv").write_text("age,days,ward\n50,3,surgery\n20,x,other\n,30,nowhere\n")
    words = ["predict", data / "out/model.safetensors", data / "new.csv", "--json"]
    out = subprocess.run([sys.executable, "-m", "veilgrad", *words], capture_output=True, check=True)
    rows = json.loads(out.stdout)["predictions"]
    found = result.predict_proba(table)
    assert np.allclose(found[0].max(), rows[0]["probability"])
    # Cells that are not as declared, and have no replacement: nothing can be said.
    assert np.isnan(found[1:]).all() and rows[1]["class"] is rows[2]["class"] is None


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda c: c["privacy"].update(epsilon=-1.0), ValueError),
        (lambda c: c["privacy"].update(unknown=1), veilgrad.VeilgradError),
        (lambda c: c["data"].update(train="no-such-file.npy"), veilgrad.VeilgradError),
        (lambda c: c.pop("model"), veilgrad.VeilgradError),
    ],
)
def test_what_is_wrong_with_a_configuration_is_said(data, change, error):
    wrong = config(data)
    change(wrong)
    with pytest.raises((error, ValueError)):
        veilgrad.train(wrong, out=data / "out", ledger=data / "ledger.db")


def test_ctrl_c_stops_in_order_and_resume_goes_on(data):
    long = config(data, rounds=200_000)
    long["privacy"] |= {"epsilon": None, "noise_multiplier": 50.0}

    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(1.0, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        veilgrad.train(long, out=data / "out", ledger=data / "ledger.db")
    timer.join()
    assert (data / "out/checkpoint.safetensors").exists()
    # Nothing that the first run installed answers to the second signal.
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(5)
    assert veilgrad.claim(data / "ledger.db").spent > 0
    timer = threading.Timer(1.0, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        veilgrad.train(long, out=data / "out", ledger=data / "ledger.db", resume=True)
    timer.join()
