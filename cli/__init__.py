"""The command line of embstore."""

import sys


def run() -> None:
    """Run the command `embstore`; Ctrl-C while its modules load is one line too."""
    try:
        from embstore_cli.main import run
    except KeyboardInterrupt:
        print("embstore: interrupted", file=sys.stderr)
        sys.exit(130)
    run()
