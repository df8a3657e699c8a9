"""The explorer as a widget in notebooks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import embstore as es
from embstore.errors import MissingPackageError, check_whole
from embstore_explorer.answers import encoded, failure
from embstore_explorer.queries.registry import answer
from embstore_explorer.stores import Explored, explored, layer_of

CODE = Path(__file__).parent / "page" / "explorer.js"  # one module without imports
Given = str | os.PathLike[str] | es.Store


def explore(
    stores: Given | Sequence[Given],
    *,
    word: str | None = None,
    layer: int | str | None = None,
    where: str | None = None,
    view: str = "map",
    height: int = 640,
) -> Any:
    """Show stores in a notebook: the pages of `embstore explore` as a widget of anywidget (extra `explore`).

    `word`, `layer`, `where`, `view` (word, map, neighbors, layers, sentence or compare): what is shown first.
    `height`: in pixels.

    The widget has `state`, what is shown, as the names and texts of a page's address: it can be changed, as in
    `widget.state = {**widget.state, "layer": "3"}`; and `selection`, the `Selection` of the points inside the lasso of
    the map, or else of the occurrences of the word and the condition that are shown, at the layer shown.

    Raises MissingPackageError.
    """
    opened = explored([stores] if isinstance(stores, str | os.PathLike | es.Store) else stores)
    check_whole("height", height, 100)
    layer = None if layer is None else layer_of(opened[0].store, layer)
    given = {"view": view, "word": word, "layer": layer, "where": where}
    state = {name: str(value) for name, value in given.items() if value is not None}
    return _widget_class()(opened, state=state, height=height)


@cache
def _widget_class() -> Any:
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise MissingPackageError('a widget needs anywidget: pip install "embstore[explore]"') from None

    class ExplorerWidget(anywidget.AnyWidget):
        """Stores in a notebook; see `embstore.explore`."""

        _esm = CODE
        state = traitlets.Dict().tag(sync=True)
        rows = traitlets.List(traitlets.Int(), allow_none=True, default_value=None).tag(sync=True)
        height = traitlets.Int().tag(sync=True)

        def __init__(self, stores: list[Explored], **options: Any) -> None:
            super().__init__(**options)
            self._stores = stores
            self.on_msg(self._reply)

        @property
        def selection(self) -> es.store.Selection:
            """The occurrences inside the lasso, or else of the word and the condition that are shown."""
            one = self._stores[int(self.state.get("store", 0))]
            layers = int(self.state["layer"]) if "layer" in self.state else None
            word, where = (self.state.get("word"), self.state.get("where")) if self.rows is None else (None, None)
            found = one.select(word=word, where=where, rows=self.rows)
            return es.store.Selection(found.store, rows=None if found.is_whole else found.rows, layers=layers)

        def _reply(self, _: Any, asked: dict[str, Any], __: Any) -> None:
            """Answer a message of the page: {id, name, params}."""

            def report(done: int, total: int | None = None) -> None:
                self.send({"id": asked["id"], "progress": [done, total]})

            try:
                data, kind = encoded(answer(self._stores, asked["name"], asked["params"], progress=report))
            except Exception as error:  # also one that is no answer to the query: the page waits for a message
                self.send({"id": asked["id"], **failure(error)})
            else:
                self.send({"id": asked["id"], "kind": kind}, [data])

    return ExplorerWidget
