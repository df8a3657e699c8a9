"""`python -m embstore_cli` is `embstore`."""

from embstore_cli.main import run

run()
