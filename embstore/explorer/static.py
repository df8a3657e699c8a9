"""A folder by which any web host shows stores: the page, pieces of the word list, and answers computed beforehand."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice, product
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np

from embstore.analysis.projection import components, sample_rows
from embstore.arguments import checked
from embstore.errors import InvalidValueError
from embstore.explorer.answers import as_json, encoded
from embstore.explorer.queries.registry import answer, has
from embstore.explorer.queries.words import columns, contextuality, described
from embstore.explorer.stores import Explored, explored
from embstore.progress import Progress, reporting
from embstore.store import Collection, Store
from embstore.store.storage.files import new_folder

PAGE = Path(__file__).parent / "page"
BLOCK = 2**18  # rows that are put in the order of the words at a time
PIECE = 2000  # words of a file
FREQUENT = 20  # words listed for a prefix that many have
COMPONENTS = 16  # of a layer, from which a word's map is drawn
MAPS_NBYTES = 2**30  # of stores whose maps of words are written unless it is said
LINES, LINES_NBYTES = 50, 2**26  # lines of a word, and bytes of all of them, the commonest words first
SHOWN, LARGE = 100_000, 1_000_000  # points of a map: those that are shown first, and those to zoom into
SAMPLE = 10_000  # occurrences among which the page finds neighbours
SENSE_WORDS, SENSE_COUNT, SENSE_SHARE = 30, 30, 0.1  # words whose senses are computed: occurrences, at most so common
DTYPES = ("float16", "float32", "bfloat16")
WHOLE = ("geometry", "cka", "probes")  # queries about a whole store
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'{origin}; "
    "worker-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'none'"
)


@checked
def write_static(
    stores: Sequence[str | os.PathLike[str] | Store],
    out: str | os.PathLike[str],
    *,
    store_url: str | None = None,
    maps: bool | None = None,
    progress: Progress = None,
) -> Path:
    """Write a new folder that shows finished stores in the browser without a server, from any web host.

    It holds the page, the words in pieces with the first lines of the commonest, a sample of 10,000 vectors of each
    layer, among which neighbours are found, and what is known of whole stores: maps of a sample of 100,000 rows at each
    layer, geometry, CKA, probes, the senses of 30 frequent words at the middle and the last layer. Other occurrences,
    sentences and vectors are read by range requests from the stores, which stay where they are: at `store_url` (of
    several stores, the folder that holds them), or by default at the path from `out` to each. A page and stores on
    different hosts need CORS with the header Range.

    `maps`: whether to write the first 16 principal components of each row and layer too, in the order of the words, 32
    bytes each, and the labels of each row, so that a frequent word is mapped, coloured and filtered from one range
    each; and maps of a million rows. By default where the components take less than 1 GiB in all.

    Raises InvalidValueError for a path that is taken, and for a store that cannot be read by ranges: one that is not
    Zarr, not finished, a collection, or of int8.
    """
    path = Path(out)
    if os.path.lexists(path):
        raise InvalidValueError(f"{path} exists already: choose another path, or remove it first")
    opened = explored(stores)
    for each in opened:
        _require_ranges(each)
    urls = [_url(each, path, store_url, several=len(opened) > 1) for each in opened]
    shown = [  # the page tells nothing of the folders of this machine
        Explored(each.store, address=url if urlsplit(url).netloc else url.rsplit("/", 1)[-1], name=each.name)
        for each, url in zip(opened, urls, strict=True)
    ]
    with new_folder(path) as partial:
        _write_page(partial, urls)
        if maps is None:
            maps = sum(maps_nbytes(each.store) for each in shown) < MAPS_NBYTES
        held = [_describe(each, number, urls[number], partial, maps) for number, each in enumerate(shown)]
        answers = _write_answers(shown, partial, maps, progress)
        (partial / "static.json").write_text(as_json({"stores": held, "answers": answers}), "utf-8")
    return path


def _require_ranges(one: Explored) -> None:
    store, name = one.store, one.name
    if isinstance(store, Collection) or not str(store.path).rstrip("/").endswith(".zarr"):
        raise InvalidValueError(f"{name} is not one Zarr store: `embstore export` makes a copy that a browser can read")
    if store.dtype not in DTYPES:
        raise InvalidValueError(f"{name} has vectors of {store.dtype}: export it as {' or '.join(DTYPES[:2])} first")
    if not store.finished:
        raise InvalidValueError(f"{name} is not finished: finish it first with the command that began it")


def _url(one: Explored, out: Path, given: str | None, *, several: bool) -> str:
    """The address of a store for the page."""
    name = one.address.rstrip("/").rsplit("/", 1)[-1]
    if given is not None:
        return f"{given.rstrip('/')}/{quote(name)}" if several else given.rstrip("/")
    if isinstance(one.store.path, Path):
        return quote(Path(os.path.relpath(Path(one.address).absolute(), out.absolute())).as_posix())
    if not one.address.startswith("https://"):
        raise InvalidValueError(f"a browser cannot read {one.address}: give the address of the store by --store-url")
    return one.address.rstrip("/")


def _write_page(out: Path, urls: Sequence[str]) -> None:
    shutil.copytree(PAGE, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("widget*"))
    parts = [urlsplit(url) for url in urls]
    origins = dict.fromkeys(f" {each.scheme}://{each.netloc}" for each in parts if each.netloc)
    policy = POLICY.format(origin="".join(origins))
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}" />'
    meta += '\n    <meta name="embstore-static" content="static.json" />'
    html = (PAGE / "index.html").read_text("utf-8")
    (out / "index.html").write_text(html.replace("<head>", f"<head>\n    {meta}", 1), "utf-8")


def maps_nbytes(store: Store) -> int:
    """The bytes of the maps of a store's words."""
    return store.n_rows * len(store.layers) * COMPONENTS * 2


def _describe(one: Explored, number: int, url: str, out: Path, maps: bool) -> dict[str, Any]:
    """What the page needs to read a store by ranges; writes its words and their maps."""
    store = one.store
    if maps:
        _write_maps(store, out / "maps" / str(number))
    sample = _write_sample(store, out / "sample" / str(number))
    lines = _write_lines(store, out / "words" / str(number))
    stored = set(store.column_shapes())
    corpus, similarities = _self_similarities(store)
    write_words(store, out / "words" / str(number), similarities, lines)
    return {
        "url": url,
        "python": one.python(),
        "layers": list(store.layers),
        "dim": store.hidden_size,
        "dtype": store.dtype,
        "rows": store.n_rows,
        "vectors": store.layout.vectors,
        "partition_rows": store.layout.partition_rows,
        "columns": [
            each for each in columns(store) if each["kind"] != "label" or f"occurrences/labels/{each['name']}" in stored
        ],
        "documents": "sentences/document" in stored,
        "words": f"words/{number}",
        "maps": f"maps/{number}" if maps else None,
        "components": COMPONENTS,
        "sample": f"sample/{number}",
        "sampled": sample,
        "sentences": len(store.index.texts),
        "senses": sense_words(store),
        "corpus": corpus,
    }


def _write_maps(store: Store, folder: Path) -> None:
    """Write a file for each layer: float16 [n_rows, COMPONENTS], in the order of `types/occurrences`."""
    folder.mkdir(parents=True)
    rows = store.occurrences[1]
    with tempfile.TemporaryFile(dir=folder) as unordered:
        for layer in store.layers:
            points = np.memmap(unordered, "<f2", "w+", shape=(store.n_rows, COMPONENTS))
            components(store, layer, points)
            with (folder / str(layer)).open("wb") as file:
                for first in range(0, len(rows), BLOCK):
                    file.write(points[rows[first : first + BLOCK]].tobytes())
    for name in store.index.own_labels:
        with (folder / f"label-{quote(name, safe='')}").open("wb") as file:
            for first in range(0, len(rows), BLOCK):
                file.write(np.asarray(store.index.labels[name].codes[rows[first : first + BLOCK]], "<i4").tobytes())


def _write_sample(store: Store, folder: Path) -> int:
    """Write the vectors of rows drawn evenly as int8 [n, hidden_size] by layer, each scaled, and the rows."""
    folder.mkdir(parents=True)
    rows = sample_rows(store.select(), SAMPLE, 0)
    (folder / "rows").write_bytes(rows.astype("<i8").tobytes())
    for layer in store.layers:
        vectors = np.asarray(store.gather(rows, layer), np.float32)
        largest = np.abs(vectors).max(1, initial=1e-30, keepdims=True)  # cosines do not depend on it
        (folder / str(layer)).write_bytes(np.rint(vectors / largest * 127).astype(np.int8).tobytes())
    return len(rows)


def _write_lines(store: Store, folder: Path) -> dict[str, tuple[int, int]]:
    """Write the first lines of the commonest words to one file; returns where each word's are: start, bytes."""
    folder.mkdir(parents=True)
    indptr, rows = store.occurrences
    counts, found, start = np.diff(indptr), {}, 0
    with (folder / "lines").open("wb") as file:
        for number in np.argsort(-counts, kind="stable").tolist():
            first = int(indptr[number])
            own = np.asarray(rows[first : first + min(LINES, int(counts[number]))])
            data = as_json(described(store, own)).encode()
            if start + len(data) > LINES_NBYTES:
                break
            file.write(data)
            found[store.index.words[number]] = start, len(data)
            start += len(data)
    return found


def sense_words(store: Store) -> list[str]:
    """The most frequent words with a letter that are not in most sentences."""
    counts = np.diff(store.occurrences[0])
    most = max(SENSE_SHARE * len(store.index.texts), SENSE_COUNT)
    order = np.argsort(-counts, kind="stable")
    chosen = order[(counts[order] >= SENSE_COUNT) & (counts[order] <= most)].tolist()
    words = (store.index.words[number] for number in chosen)
    return list(islice((word for word in words if any(map(str.isalpha, word))), SENSE_WORDS))


def _self_similarities(store: Store) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """The self-similarity and anisotropy of the corpus by layer, and the self-similarity of its words by layer."""
    corpus, frame = contextuality(store, False)
    words = frame.filter((frame["item"] != "") & (frame["metric"] == "selfsim")).group_by("item").agg("value")
    return corpus, dict(words.iter_rows())


def write_words(
    store: Store, folder: Path, similarities: Mapping[str, list[float]], lines: Mapping[str, tuple[int, int]]
) -> None:
    """Write the words without their case in alphabetical order, with what is known of each, in pieces.

    A word has its spelling, the position of its first row in `types/occurrences`, its count, and if they are known its
    self-similarity by layer and where its lines are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words, indptr = list(store.index.words), np.asarray(store.occurrences[0])
    folded = [word.lower() for word in words]
    order = sorted(range(len(words)), key=lambda each: folded[each].encode("utf-16-be", "surrogatepass"))
    starts, counts = indptr[:-1].tolist(), np.diff(indptr).tolist()
    entries = [
        (words[each], starts[each], counts[each], similarities.get(words[each]), lines.get(words[each]))
        for each in order
    ]
    alphabet = [folded[each] for each in order]
    for piece, first in enumerate(range(0, len(entries), PIECE)):
        (folder / f"{piece}.json").write_text(as_json(entries[first : first + PIECE]), "utf-8")
    ranked = sorted(range(len(order)), key=lambda each: (-entries[each][2], order[each]))
    rank = np.empty(len(order), np.int64)
    rank[ranked] = np.arange(len(order))
    frequent = {
        prefix: [entries[ranked[each]][:3:2] for each in np.sort(rank[first:last])[:FREQUENT].tolist()]
        for prefix, first, last in _prefixes(alphabet, "", 0, len(alphabet))
    }
    index = {"firsts": alphabet[::PIECE], "frequent": frequent}
    (folder / "index.json").write_text(as_json(index), "utf-8")


def _prefixes(alphabet: Sequence[str], prefix: str, first: int, last: int) -> Iterator[tuple[str, int, int]]:
    """Yield the prefixes that more words have than two pieces hold, and the positions of these words."""
    if last - first <= 2 * PIECE and prefix:
        return
    yield prefix, first, last
    longer = (each for each in range(first, last) if len(alphabet[each]) > len(prefix))
    for _, group in groupby(longer, key=lambda each: alphabet[each][len(prefix)]):
        members = list(group)
        yield from _prefixes(alphabet, alphabet[members[0]][: len(prefix) + 1], members[0], members[-1] + 1)


def _calls(shown: Sequence[Explored], large: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The queries that are answered beforehand."""
    yield "stores", {}
    for number, one in enumerate(shown):
        yield from ((name, {"store": number}) for name in WHOLE if has(name))
        for other in range(len(shown)) if has("cka") else ():
            if other != number:
                yield "cka", {"store": number, "other": other}
        colors = [None, "word", "cluster", *(each["name"] for each in columns(one.store) if each["kind"] == "label")]
        for layer, color in product(one.store.layers, colors if has("map") else ()):
            given = {"store": number, "layer": layer, **({"color": color} if color else {})}
            yield "map", given
            if large and one.store.n_rows > SHOWN:
                yield "map", {**given, "sample": LARGE}
        layers = one.store.layers
        for layer in dict.fromkeys((layers[len(layers) // 2], layers[-1])):
            yield from (("senses", {"store": number, "word": word, "layer": layer}) for word in sense_words(one.store))


def _write_answers(shown: Sequence[Explored], out: Path, large: bool, progress: Progress) -> dict[str, str]:
    """Answer these queries; returns the file of each, by its name and parameters as the page spells them."""
    folder, calls = out / "answers", list(_calls(shown, large))
    folder.mkdir()
    files = {}
    with reporting(progress, total=len(calls), unit="answers", label="static") as report:
        for number, (name, params) in enumerate(calls):
            data, kind = encoded(answer(shown, name, params))
            file = f"answers/{number}.{'json' if kind == 'application/json' else 'safetensors'}"
            (out / file).write_bytes(data)
            files[f"{name}?" + "&".join(f"{key}={value}" for key, value in sorted(params.items()))] = file
            report(number + 1)
    return files
