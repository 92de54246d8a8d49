"""The blocks of docs/python.md, in their order and in one program."""

import re
from pathlib import Path

import pytest

import veilgrad

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs/python.md"


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def test_every_block_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(blocks(PAGE)) >= 5
    namespace = {}
    for number, block in enumerate(blocks(PAGE)):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), namespace)


@pytest.mark.parametrize("page", ["README.md", "adapters/veilgrad-python/README.md"])
def test_the_blocks_of_other_pages_run(page, monkeypatch):
    # Training takes a minute, and is tested elsewhere.
    monkeypatch.setattr(veilgrad, "train", lambda config: None)
    found = blocks(REPOSITORY / page)
    assert found
    for block in found:
        exec(compile(block, page, "exec"), {})
