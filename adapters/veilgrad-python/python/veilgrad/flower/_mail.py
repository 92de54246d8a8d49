"""Sends invitations and collects replies until a deadline."""

from __future__ import annotations

import time
from collections.abc import Collection
from logging import WARNING

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore import log

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 3.0
#: What decoding can raise. Errors of the network are not among them: they end the run, which can be continued.
UNDECODABLE = (ValueError, TypeError, LookupError, AttributeError)


def send_and_receive(grid: Grid, messages: list[Message], timeout: float) -> list[Message]:
    """Sends messages and returns the replies that are there before the deadline.

    Unlike `Grid.send_and_receive`, it goes on without a reply that Flower cannot decode, and looks more often at first.
    """
    if not messages:
        return []
    pending = {identity for identity in grid.push_messages(messages) if identity}
    deadline, pause = time.monotonic() + timeout, FIRST_PAUSE
    replies: list[Message] = []
    while pending:
        found, broken = _pull(grid, pending)
        replies += found
        pending -= broken | {reply.metadata.reply_to_message_id for reply in found}
        left = deadline - time.monotonic()
        if left <= 0:
            break
        if pending:
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, LONGEST_PAUSE)
    return replies


def _pull(grid: Grid, pending: Collection[str]) -> tuple[list[Message], set[str]]:
    """The replies that are there, and the invitations whose replies cannot be decoded."""
    try:
        return list(grid.pull_messages(pending)), set()
    except UNDECODABLE:
        log(WARNING, "a reply could not be decoded and counts as zero")
    found: list[Message] = []
    broken: set[str] = set()
    for identity in pending:
        try:
            found += grid.pull_messages([identity])
        except UNDECODABLE:
            broken.add(identity)
    return found, broken
