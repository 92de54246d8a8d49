"""Modules for peers that are not installed here have no examples to run."""

import importlib.util

collect_ignore = [
    f"python/veilgrad/{name}.py"
    for name in ("dp_accounting", "jax_privacy", "opacus")
    if importlib.util.find_spec(name) is None
]
