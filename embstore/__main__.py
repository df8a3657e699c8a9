"""`python -m embstore`: the same as the command `embstore`."""

from embstore_cli import run

if __name__ == "__main__":
    run()
