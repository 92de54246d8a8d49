"""The loader for PyTorch on the page about model files gives the same probabilities as the command."""

import csv
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from test_exchange import MODELS, REPOSITORY, files, place, predictions, trained  # noqa: E402, F401

NAMES = [name for name in MODELS if "scattering" not in MODELS[name][1] and "copies" not in MODELS[name][1]]


def blocks():
    page = (REPOSITORY / "docs/model-format.md").read_text()
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", NAMES)
def test_torch_gives_the_same_probabilities(place, trained, name):  # noqa: F811
    namespace = {}
    for block in blocks():
        exec(compile(block, "docs/model-format.md", "exec"), namespace)
    data, path = MODELS[name][0], trained(name)
    model, network = namespace["load"](path)
    public = files(place, data)[0]
    if data == "table":
        with open(public) as file:
            examples = namespace["encode"](network, list(csv.DictReader(file)))
    else:
        examples = torch.tensor(np.load(public))
    found = model(examples).double().softmax(1).numpy()
    difference = np.abs(found - predictions(place, path, data)).max()
    print(f"\n{name}: probabilities differ by {difference:.2e}")
    assert difference < 1e-5
