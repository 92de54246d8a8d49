"""What the results of compare.py must keep to."""

# The epsilon of all configurations here.
MOST_EPSILON = 3.0
# Tables of classes with so many records are within this many percentage points of logistic regression without noise.
LARGE = 20_000
MOST_BELOW = 1.0


def broken(table, records, epsilons, points):
    """What is not as it must be, in sentences: `points` is the accuracy minus that of scikit-learn in percentage points, or
    None for a label that is a number.

    >>> broken("adult", 32561, [2.9999, 3.0], -0.9)
    []
    >>> broken("adult", 32561, [3.0], -1.1)
    ['adult: accuracy is 1.10 points below scikit-learn, more than 1.0']
    >>> broken("small", 500, [2.0, 3.1], -4.0)
    ['small: epsilon 3.1 is above 3.0']
    >>> broken("prices", 90000, [3.0], None)
    []
    """
    found = [f"{table}: epsilon {epsilon} is above {MOST_EPSILON}" for epsilon in epsilons if not epsilon <= MOST_EPSILON]
    if points is not None and records >= LARGE and not points >= -MOST_BELOW:
        found.append(f"{table}: accuracy is {-points:.2f} points below scikit-learn, more than {MOST_BELOW}")
    return found
