"""The options `--context-window` and `--attention-window`, one width or several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embstore.errors import InvalidValueError

if TYPE_CHECKING:
    from embstore.store.storage.location import ObjectPath

WINDOWS = "How much of the sentence the model sees"

ContextWindow = Annotated[
    str | None,
    typer.Option(
        "--context-window",
        metavar="K",
        rich_help_panel=WINDOWS,
        help="Give the model only K words left and right of each target: a number or full. Several, such as "
        "0,2,8,full, run equal windows once and write a store each: NAME-k0.zarr to NAME-full.zarr.",
    ),
]
AttentionWindow = Annotated[
    str | None,
    typer.Option(
        "--attention-window",
        metavar="K",
        rich_help_panel=WINDOWS,
        help="Give the model the whole sentence, where at every layer a word attends to the words at most K away. "
        "Several write NAME-a0.zarr and so on, a pass each.",
    ),
]


def windows_asked(context: str | None, attention: str | None) -> tuple[str, tuple[int | None, ...]]:
    """The kind and the widths asked for; None, the whole sentence, where nothing is."""
    from embstore.extraction.options import parse_windows

    if context is not None and attention is not None:
        raise InvalidValueError(
            f"context window {context} and attention window {attention} cannot be had together: give one of them"
        )
    if attention is not None:
        return "attention", parse_windows(attention, name="attention")
    return "context", parse_windows("full" if context is None else context, name="context")


def places(store: Path | ObjectPath, asked: tuple[str, tuple[int | None, ...]]) -> dict[int | None, Path | ObjectPath]:
    """Where each window's store will stand: STORE itself where it is the only one and its name holds no {window}."""
    from embstore.extraction.window_plan import PLACEHOLDER, store_path

    kind, windows = asked
    if len(windows) == 1 and PLACEHOLDER not in store.name:
        return {windows[0]: store}
    return {window: store_path(store, kind=kind, window=window) for window in windows}
