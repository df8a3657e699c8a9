"""`python -m embstore`: the same as the command `embstore`."""

from embstore_cli.main import run

if __name__ == "__main__":
    run()
