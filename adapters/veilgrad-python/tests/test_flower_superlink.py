"""A real SuperLink and four SuperNodes on loopback, with hostile clients."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import veilgrad  # noqa: E402

APP = Path(__file__).parent / "flower_app"
PROGRAMS = Path(sys.executable).parent
#: Seconds until everything is killed.
LONGEST = 150


@contextmanager
def running(command: list[str], log: Path, environment: dict[str, str]) -> Iterator[None]:
    """Runs a program, and ends it and everything that it started."""
    with open(log, "wb") as file:
        child = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
    try:
        yield
    finally:
        try:
            os.killpg(child.pid, signal.SIGTERM)
            child.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_for_port(port: int, until: float) -> None:
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError("the SuperLink does not listen")


def test_four_nodes_with_hostile_clients_give_a_finite_model_and_the_planned_epsilon(tmp_path: Path) -> None:
    home, place = tmp_path / "flwr", tmp_path / "run"
    home.mkdir()
    place.mkdir()
    link, *nodes = free_ports(5)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
        # The package may be installed for development; subprocesses of Flower find it all the same.
        "PYTHONPATH": os.pathsep.join([str(Path(veilgrad.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]),
    }
    began, until = time.monotonic(), time.monotonic() + LONGEST
    with ExitStack() as stack:
        superlink = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(link)]
        superlink.append("--disable-runtime-dependency-installation")
        stack.enter_context(running(superlink, tmp_path / "superlink.log", environment))
        for user, port in enumerate(nodes):
            node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}", "--port", str(port)]
            node += ["--node-config", f"user={user}"]
            stack.enter_context(running(node, tmp_path / f"node{user}.log", environment))
        wait_for_port(link, until)
        started = subprocess.run(
            ["flwr", "run", str(APP), "here", "--run-config", f"run='{place}'"],
            env=environment, capture_output=True, text=True, timeout=LONGEST,
        )
        assert started.returncode == 0, started.stdout + started.stderr
        while not (place / "found.json").exists() and time.monotonic() < until:
            time.sleep(0.2)
        logs = "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(tmp_path.glob("*.log")))
        assert (place / "found.json").exists(), logs
    found = json.loads((place / "found.json").read_text())
    assert found["finite"] and found["norm"] < 1e3
    # Only honest replies change the bias: one user of at most three who count in every round, and a second one in the last.
    # Without any reply it would be noise of at most about 1e-3.
    assert all(0.005 < value < 0.1 for value in found["bias"]), found["bias"]
    assert math.isclose(found["claimed"], found["planned"], rel_tol=1e-6)
    assert math.isclose(veilgrad.claim(place / "ledger.db").epsilon, found["planned"], rel_tol=1e-6)
    assert found["metrics"] == {}
    print(f"a SuperLink, four SuperNodes and three rounds: {time.monotonic() - began:.0f} s")
