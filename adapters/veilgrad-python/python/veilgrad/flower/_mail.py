"""Sends invitations and collects replies until a deadline."""

from __future__ import annotations

import time

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 3.0
#: Errors of the network end the run, which can be continued. Every other error comes from the reply that is asked for.
NETWORK = (httpx.TransportError, OSError)


def send_and_receive(grid: Grid, messages: list[Message], timeout: float) -> list[Message]:
    """Sends messages and returns the replies that are there before the deadline.

    Every reply is asked for alone: Flower forgets all replies that it hands over together, before it decodes them, so that
    one that cannot be decoded would remove those of other users. Such a reply is ignored, and no log or result mentions it.
    """
    if not messages:
        return []
    pending = {identity for identity in grid.push_messages(messages) if identity}
    deadline, pause = time.monotonic() + timeout, FIRST_PAUSE
    replies: list[Message] = []
    while pending:
        for identity in sorted(pending):
            found = _pull(grid, identity)
            if found is None:
                continue
            pending.remove(identity)
            # What a message says of itself is the client's word: it answers the invitation that was asked for, or none.
            replies += [reply for reply in found if reply.metadata.reply_to_message_id == identity][:1]
        left = deadline - time.monotonic()
        if left <= 0:
            break
        if pending:
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, LONGEST_PAUSE)
    return replies


def _pull(grid: Grid, identity: str) -> list[Message] | None:
    """What came as the reply to an invitation: nothing if it cannot be decoded; `None` if it is not there yet."""
    try:
        return list(grid.pull_messages([identity])) or None
    except NETWORK:
        raise
    except Exception:
        return []
