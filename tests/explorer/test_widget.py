"""The widget of notebooks: messages and selection in Python, the page in a browser with a model for the notebook."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embstore as es
from embstore.errors import InvalidValueError, MissingPackageError
from embstore_explorer import answer, explore, explored, notebook
from embstore_explorer.answers import encoded
from tests.explorer.conftest import loaded, new_page
from tests.store_making import make_store
from tests.web_host import web_host


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> es.Store:
    return make_store(tmp_path_factory.mktemp("widget") / "s.zarr").store


@pytest.fixture
def widget(store: es.Store) -> Any:
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    return explore(store, word="bank", layer=2, view="word")


def ask(widget: Any, name: str, **params: str) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Send a message as the page does; returns the messages that come back, and the last one's buffers."""
    sent: list[tuple[dict[str, Any], list[bytes]]] = []
    widget.send = lambda content, buffers=(): sent.append((content, list(buffers)))
    widget._handle_custom_msg({"id": 7, "name": name, "params": params}, [])
    return [content for content, _ in sent], sent[-1][1]


def test_a_layer_may_be_named_from_the_end(store: es.Store) -> None:
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    shown = [explore(store, layer=layer) for layer in ("last", -1)]
    assert [each.selection.layers for each in shown] == [store.layers[-1:]] * 2
    with pytest.raises(InvalidValueError, match="layer 99 is not stored"):
        explore(store, layer=99)


@pytest.mark.parametrize(
    ("name", "params"), [("occurrences", {"word": "bank", "limit": "3"}), ("map", {"layer": "2", "sample": "30"})]
)
def test_messages_are_answered_as_the_server_does(
    widget: Any, store: es.Store, name: str, params: dict[str, str]
) -> None:
    messages, buffers = ask(widget, name, **params)
    data, kind = encoded(answer(explored([store]), name, params))
    assert (messages[-1], buffers) == ({"id": 7, "kind": kind}, [data])


def test_errors_are_one_line(widget: Any) -> None:
    (message,), buffers = ask(widget, "occurrences", word="zebra")
    assert "zebra" in message["error"]
    assert not buffers
    assert "nothing" in ask(widget, "nothing")[0][0]["error"]


def test_an_unexpected_error_is_answered_too(widget: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("one\ntwo")

    monkeypatch.setattr(notebook, "answer", broken)
    assert ask(widget, "stores")[0] == [{"id": 7, "error": "ZeroDivisionError: one two"}]


def test_selection_is_what_is_shown(widget: Any, store: es.Store) -> None:
    bank = store.select(words="bank")
    assert widget.state == {"view": "word", "word": "bank", "layer": "2"}
    assert widget.selection.layers == (2,)
    assert widget.selection.rows.tolist() == bank.rows.tolist()
    widget.state = {"word": "bank", "where": "upos = 'NOUN'"}
    table = bank.table()
    assert widget.selection.rows.tolist() == table.filter(table["upos"] == "NOUN")["occurrence"].to_list()
    assert widget.selection.layers == store.layers
    widget.rows = [9, 4]
    assert widget.selection.rows.tolist() == [4, 9]
    widget.rows, widget.state = None, {}
    assert widget.selection.is_whole


def test_what_is_refused(store: es.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidValueError, match="height"):
        explore(store, height=3)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    notebook._widget_class.cache_clear()
    with pytest.raises(MissingPackageError, match=r"embstore\[explore\]"):
        explore(store)
    notebook._widget_class.cache_clear()


PAGE = """<!doctype html><meta charset="utf-8"><style>body { color: red }</style><div id="cell"></div>
<script type="module">
import widget from "./explorer.js";
const values = VALUES, listeners = {};
const emit = (name, ...given) => (listeners[name] ?? []).forEach((each) => each(...given));
const model = window.model = {
  get: (name) => values[name],
  set: (name, value) => { values[name] = value; emit(`change:${name}`); },
  save_changes: () => {},
  on: (name, call) => (listeners[name] ??= []).push(call),
  off: (name, call) => { listeners[name] = listeners[name].filter((each) => each !== call); },
  send: async ({ id, name, params }) => {
    const { kind, error, data } = await window.python(name, params);
    const bytes = data && Uint8Array.from(atob(data), (each) => each.charCodeAt(0));
    emit("msg:custom", { id, kind, error }, bytes ? [new DataView(bytes.buffer)] : []);
  },
};
window.close_widget = widget.render({ model, el: document.getElementById("cell") });
window.listening = () => Object.values(listeners).flat().length;
</script>"""


@pytest.fixture
def page(browser: Any, store: es.Store, widget: Any, tmp_path: Path) -> Iterator[Any]:
    values = {"state": widget.state, "height": 500, "rows": None}
    (tmp_path / "index.html").write_text(PAGE.replace("VALUES", json.dumps(values)), "utf-8")
    (tmp_path / "explorer.js").write_bytes(notebook.CODE.read_bytes())

    def python(name: str, params: dict[str, str]) -> dict[str, str]:
        try:
            data, kind = encoded(answer(explored([store]), name, params))
        except es.errors.EmbstoreError as error:
            return {"error": str(error)}
        return {"kind": kind, "data": base64.b64encode(data).decode()}

    with web_host(tmp_path) as host:
        page = new_page(browser.new_context())
        page.expose_function("python", python)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(host.url)
        yield page
        assert not problems
        page.context.close()


@pytest.mark.slow
def test_the_page_in_a_cell_follows_the_state(page: Any, store: es.Store) -> None:
    count = f"{len(store.select(words='bank')):,}"
    loaded(page)
    page.locator("#cell .pager", has_text=f"of {count}").wait_for()
    page.get_by_role("link", name="Neighbours", exact=True).click()
    page.wait_for_function("model.get('state').view === 'neighbors'")
    page.evaluate("model.set('state', { view: 'word', word: 'river' })")
    page.get_by_text("river", exact=True).first.wait_for()
    assert page.title() == ""
    style = "getComputedStyle(document.querySelector('#cell').shadowRoot.querySelector('.box')).color"
    assert page.evaluate(style) != "rgb(255, 0, 0)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(255, 0, 0)"
    page.evaluate("close_widget()")
    assert page.evaluate("listening()") == 0
