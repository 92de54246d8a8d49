"""Writes cases.json: labels, probabilities, and what scikit-learn computes from them.

    python -m venv /tmp/cases && /tmp/cases/bin/pip install scikit-learn
    /tmp/cases/bin/python crates/veilgrad-cli/tests/evaluate/cases.py
"""

import json
import pathlib
import warnings

import numpy as np
from sklearn import metrics
from sklearn.calibration import calibration_curve

BINS = 10


def expected(labels, probabilities, predicted):
    classes = probabilities.shape[1]
    names = list(range(classes))
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        labels, predicted, labels=names, zero_division=0
    )
    if classes == 2:
        true, score = (labels == 1).astype(int), probabilities[:, 1]
    else:
        true, score = (labels == predicted).astype(int), probabilities[np.arange(len(labels)), predicted]
    fraction, probability = calibration_curve(true, score, n_bins=BINS)
    places = np.searchsorted(np.linspace(0.0, 1.0, BINS + 1)[1:-1], score)
    count = np.bincount(places, minlength=BINS)
    count = count[count > 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if classes == 2:
            auc = metrics.roc_auc_score(true, score) if len(set(true)) == 2 else None
        else:
            auc = metrics.roc_auc_score(labels, probabilities, multi_class="ovr", labels=names)
        auc = None if auc is None or np.isnan(auc) else auc
    return {
        "accuracy": metrics.accuracy_score(labels, predicted),
        "precision": precision.tolist(),
        "recall": recall.tolist(),
        "f1": f1.tolist(),
        "macro_f1": metrics.f1_score(labels, predicted, labels=names, average="macro", zero_division=0),
        "confusion": metrics.confusion_matrix(labels, predicted, labels=names).tolist(),
        "auc": auc,
        "log_loss": metrics.log_loss(labels, probabilities, labels=names),
        "brier": metrics.brier_score_loss(labels, probabilities, labels=names),
        "bin_fraction": fraction.tolist(),
        "bin_probability": probability.tolist(),
        "bin_count": count.tolist(),
        "calibration_error": float(np.sum(count * np.abs(fraction - probability)) / len(labels)),
    }


def case(name, labels, probabilities):
    predicted = probabilities.argmax(axis=1)
    return {
        "name": name,
        "labels": labels.tolist(),
        "probabilities": probabilities.tolist(),
        "predicted": predicted.tolist(),
        "expected": expected(labels, probabilities, predicted),
    }


def random_case(name, seed, count, classes, strength, digits=None):
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, count)
    outputs = random.normal(size=(count, classes))
    outputs[np.arange(count), labels] += strength
    powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    probabilities = powers / powers.sum(axis=1, keepdims=True)
    if digits is not None:
        # Many equal scores, and scores on the edges of bins.
        probabilities = np.round(probabilities, digits)
        probabilities[:, -1] = 1.0 - probabilities[:, :-1].sum(axis=1)
        probabilities = np.clip(probabilities, 0.0, 1.0)
    return case(name, labels, probabilities)


if __name__ == "__main__":
    cases = [
        random_case("two classes", 1, 60, 2, 1.0),
        random_case("two classes, ties", 2, 80, 2, 0.7, digits=1),
        random_case("four classes", 3, 80, 4, 1.5),
        random_case("three classes, ties", 4, 60, 3, 1.0, digits=1),
        case("certain and wrong", np.array([0, 1, 1, 0]), np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])),
        case("a class without examples", np.array([0, 1, 0]), np.array([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])),
        case("one class only", np.array([1, 1]), np.array([[0.3, 0.7], [0.6, 0.4]])),
    ]
    place = pathlib.Path(__file__).with_name("cases.json")
    place.write_text(json.dumps(cases, indent=None, separators=(",", ":")) + "\n")
