"""What all tests need."""

import importlib.util
import signal

# A shell starts background jobs with Ctrl-C ignored, and Python leaves it so. Tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Modules for peers that are not installed here have no examples to run.
collect_ignore = [
    f"python/veilgrad/{name}.py"
    for name in ("dp_accounting", "jax_privacy", "opacus")
    if importlib.util.find_spec(name) is None
]
if importlib.util.find_spec("flwr") is None:
    collect_ignore.append("python/veilgrad/flower")
# Helpers of the tests on Flower. The second is a Flower app, which Flower starts.
collect_ignore += ["tests/flower_grid.py", "tests/flower_server.py", "tests/flower_mutants.py", "tests/flower_app"]
