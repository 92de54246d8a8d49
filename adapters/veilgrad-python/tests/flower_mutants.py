"""Puts privacy bugs into a copy of the strategy for Flower, one at a time. A test must notice each: flower_mutants.py [NAME...]"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "python" / "veilgrad"


class Mutant(NamedTuple):
    """A bug: this code in this file becomes the other. The promise that it breaks, and the tests that notice."""

    name: str
    promise: str
    file: str
    code: str
    becomes: str
    tests: str


HOSTILE = "test_flower.py::test_a_hostile_client_contributes_nothing_or_at_most_its_clip"
HANDED = "test_flower.py::test_replies_that_are_handed_to_the_strategy_count_once_and_for_their_round"
MUTANTS = [
    Mutant("a-second-reply-counts", "A user counts once.", "_strategy.py", "            del waiting[metadata.src_node_id]\n", "",
           f"{HANDED}[duplicate]"),
    Mutant("late-replies-count", "A reply to another invitation counts as zero.", "_strategy.py",
           "metadata.reply_to_message_id == invitation.metadata.message_id", "True", f"{HANDED}[late]"),
    Mutant("forged-replies-count", "A reply counts as that to the invitation for which it was asked.", "_mail.py",
           " if reply.metadata.reply_to_message_id == identity", "",
           "test_flower.py::test_a_reply_in_the_name_of_another_user_does_not_replace_that_users_reply"),
    Mutant("any-request-counts", "Only replies to the request of the round count.", "_strategy.py",
           " or metadata.message_type != MessageType.TRAIN", "", f"{HOSTILE}[reply to another request]"),
    Mutant("uninvited-nodes-count", "Whoever was not asked counts as zero.", "_strategy.py",
           "waiting.get(metadata.src_node_id)", "waiting.get(metadata.src_node_id, next(iter(waiting.values()), None))",
           f"{HOSTILE}[uninvited]"),
    Mutant("headers-are-trusted", "Bytes are compared with the declared shape.", "_reply.py",
           "    if len(data) - header.tell() != count * dtype.itemsize:\n", "    if len(data) - header.tell() < count * dtype.itemsize:\n",
           f"{HOSTILE}[more bytes]"),
    Mutant("shapes-are-not-compared", "A reply of another shape counts as zero.", "_reply.py", "found != shape or ", "",
           f"{HOSTILE}[transposed shape]"),
    Mutant("errors-of-replies-escape", "No reply raises an error.", "_reply.py", "        except Exception:", "        except ZeroDivisionError:",
           f"{HOSTILE}[missing array]"),
    Mutant("weights-have-no-bound", "A weight is at most 1.", "_strategy.py", '"weighted": weight_bound is not None', '"weighted": False',
           "test_flower.py::test_every_user_weighs_the_same_without_a_weight_bound_and_at_most_1_with_one"),
    Mutant("every-node-of-a-user-is-asked", "A user is asked on one node.", "_strategy.py",
           "for node in grid.get_nodes():\n                user = node.node_id if self.user_of is None else self.user_of(node)",
           "for node in grid.get_nodes():\n                user = node.node_id",
           "test_flower.py::test_a_user_with_several_nodes_is_asked_on_one_and_counts_once"),
    Mutant("nodes-are-called-users", "The statement says which unit is protected.", "_strategy.py",
           'unit="node" if user_of is None else "user"', 'unit="user"',
           "test_flower.py::test_the_statement_says_whether_users_or_nodes_are_protected"),
    Mutant("fixed-cohorts-under-add-remove", "A fixed cohort needs replace-one adjacency.", "_strategy.py",
           'if cohort == "fixed" and adjacency == "add-remove":', "if False:",
           "test_flower.py::test_a_fixed_cohort_is_refused_under_add_remove_with_the_reason"),
    Mutant("cohorts-of-everybody", "The cohort is the sample.", "_strategy.py", "for record in sample.ids() if record < len(names)",
           "for record in range(len(names))", "test_flower.py::test_a_poisson_cohort_takes_each_user_with_its_rate_and_a_fixed_one_has_its_size"),
    Mutant("fixed-cohorts-of-the-connected", "A fixed cohort is drawn from all declared users.", "_strategy.py",
           'return self.cohort.users if self.cohort.kind == "fixed" else len(users)', "return len(users)",
           "test_flower.py::test_absent_users_of_a_fixed_cohort_are_drawn_and_not_asked"),
    Mutant("metrics-leave", "No metric leaves without noise.", "_strategy.py",
           "        return session.model.record(self._order), released\n",
           '        released["seen"] = len(current.invited)\n        return session.model.record(self._order), released\n',
           "test_flower.py::test_no_metric_leaves_unless_it_is_a_group_of_the_round"),
    Mutant("replies-are-counted-in-logs", "Logs do not say who replied.", "_strategy.py",
           "                if found is not None:\n", '                log(INFO, "received")\n                if found is not None:\n',
           "test_flower.py::test_logs_do_not_depend_on_who_replies_and_what"),
    Mutant("ledgers-may-be-rolled-back", "A run is continued only with the ledger that was charged.", "_session.py",
           '"delta": delta, "head": head}', '"delta": delta}', "test_flower_recovery.py::test_a_ledger_that_was_rolled_back_is_refused"),
    Mutant("saved-before-it-is-complete", "A checkpoint is the old one or the new one.", "_checkpoint.py",
           'new = path.with_suffix(".new")', "new = path", "test_flower_recovery.py::test_a_killed_server_is_charged_and_continued_within_its_budget"),
    Mutant("settings-may-change", "A run is continued as it was begun.", "_checkpoint.py", "        if changed:\n", "        if False:\n",
           "test_flower_recovery.py::test_other_settings_and_other_processes_are_refused"),
    Mutant("two-servers-in-one-directory", "One process runs in a directory.", "_checkpoint.py", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH",
           "test_flower_recovery.py::test_other_settings_and_other_processes_are_refused"),
]


def survives(mutant: Mutant) -> bool:
    """Whether its tests pass although the bug is there."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "veilgrad"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        for library in PACKAGE.glob("*.so"):
            (copy / library.name).symlink_to(library)
        file = copy / "flower" / mutant.file
        text = file.read_text()
        if text.count(mutant.code) != 1:
            sys.exit(f"{mutant.name}: its code is not in {mutant.file} exactly once")
        file.write_text(text.replace(mutant.code, mutant.becomes))
        options = ["-q", "-c", os.devnull, "--rootdir", directory, "--import-mode=importlib", "-p", "no:cacheprovider"]
        environment = {**os.environ, "PYTHONPATH": directory}
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *options, str(HERE / mutant.tests)],
            cwd=directory, env=environment, capture_output=True, text=True, timeout=600, check=False,
        )
        if ran.returncode not in (0, 1):
            sys.exit(f"{mutant.name}: its tests did not run\n{ran.stdout}{ran.stderr}")
        return ran.returncode == 0


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    survivors = 0
    for mutant in chosen:
        alive = survives(mutant)
        survivors += alive
        print(f"{'SURVIVED' if alive else 'killed':9} {mutant.name}: {mutant.promise}", flush=True)
    print(f"{len(chosen) - survivors} killed, {survivors} survived")
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
