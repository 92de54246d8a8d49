"""The command `veilgrad`."""

import signal
import sys

from veilgrad._native import command


def main() -> int:
    """Runs the command with the words of the command line."""
    # The command has its own handlers, and leaves ledger and checkpoint in order.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return command(["veilgrad", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
