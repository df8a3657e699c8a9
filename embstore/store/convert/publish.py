"""Upload a store to a data set of the Hugging Face hub, with a README that says what it is."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embstore.arguments import checked
from embstore.errors import InvalidValueError, StorageError, quoted
from embstore.store.storage.client import cleaned
from embstore.store.storage.location import HUB_STORE, parse_hub
from embstore.store.store import Store

MAX_FILES = 100_000  # of a repository of the hub
MAX_ENTRIES = 10_000  # of a folder
MAX_NBYTES = 50 * 10**9  # of a file


@checked
def publish(
    data: Store, address: str, *, license: str | None = None, citation: str | None = None, private: bool = False
) -> str:
    """Upload a finished Zarr store on a disk to a data set of the Hugging Face hub; returns its address.

    `address`: hf://datasets/USER/NAME or, for a path other than store.zarr, hf://datasets/USER/NAME/PATH.zarr. A data
    set that does not exist is created, `private` or not, and gets a README with the `license` (an identifier of the
    hub, such as cc-by-4.0) and the `citation`; a README that exists is left as it is. The token is that of
    huggingface_hub (`hf auth login`, HF_TOKEN), which is neither read nor kept here. Raises InvalidValueError for a
    store that is not finished or beyond the hub's limits, StorageError where the hub refuses it.
    """
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    repository, revision, inside = parse_hub(address)
    if revision is not None or not (inside or HUB_STORE).endswith(".zarr"):
        raise InvalidValueError(f"address: {quoted(address)} is not hf://datasets/USER/NAME[/PATH.zarr]")
    path = Path(str(data.path))
    if not path.is_dir():
        raise InvalidValueError(f"{path} is not a Zarr store on a disk: `embstore export` makes one")
    if data.n_committed_rows < data.n_rows:
        raise InvalidValueError(f"{path} is not finished: extract the rest before it is published")
    files = _files(path)
    text = readme(data, address, _sha256(path, files), license=license, citation=citation)
    api = huggingface_hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        api.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repository,
            repo_type="dataset",
            folder_path=path,
            path_in_repo=inside or HUB_STORE,
            commit_message="Add a store of embstore",
        )
        if not api.file_exists(repository, "README.md", repo_type="dataset"):
            api.upload_file(
                path_or_fileobj=text.encode(), path_in_repo="README.md", repo_id=repository, repo_type="dataset"
            )
    except (HfHubHTTPError, LocalTokenNotFoundError, OSError) as error:
        raise StorageError(f"cannot publish to {address}: {cleaned(str(error))}") from None
    return address


def readme(store: Store, address: str, sha256: str, *, license: str | None, citation: str | None) -> str:
    """Return the README of a data set: where the vectors come from, how they are opened, checked and cited."""
    metadata = store.metadata
    facts: dict[str, Any] = {
        "rows": f"{store.n_rows:,}",
        "layers": ", ".join(map(str, store.layers)),
        "vector": f"{metadata.hidden_size} x {store.dtype}",
        "SHA-256": f"`{sha256}` of the files, one after another in the order of their names",
    }
    made: Mapping[str, Mapping[str, Any]] = {
        "Model": metadata.model,
        "Corpus": metadata.corpus,
        "Extraction": metadata.extraction,
        "Software": metadata.software,
    }
    head = {"license": license or "unknown", "tags": ["embstore", "embeddings", "hidden-states"]}
    lines = ["---", *(f"{name}: {json.dumps(value)}" for name, value in head.items()), "---", ""]
    lines += [f"# {store.path.stem}: hidden states of {metadata.model['name']}", "", "```python"]
    lines += ["import embstore as es", "", f'store = es.open("{address}")', "```", ""]
    lines += _table(facts)
    for title, values in made.items():
        lines += [f"## {title}", "", *_table(values)]
    lines += ["## License", "", license or "Not given: that of the corpus and of the model apply.", ""]
    lines += ["## Citation", "", citation or "Cite the model, the corpus and embstore.", ""]
    return "\n".join(lines)


def _table(values: Mapping[str, Any]) -> list[str]:
    shown = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    rows = [f"| {name} | {text.replace('|', chr(92) + '|')} |" for name, text in shown.items()]
    return ["| | |", "| --- | --- |", *rows, ""]


def _files(path: Path) -> list[str]:
    """Return the names of the files of a store, sorted. Raises InvalidValueError beyond the limits of the hub."""
    names = sorted(each.relative_to(path).as_posix() for each in path.rglob("*") if each.is_file())
    folders = {parent for name in names for parent in Path(name).parents} - {Path()}
    entries = Counter(each.parent for each in (*map(Path, names), *folders))
    largest = max((path / name).stat().st_size for name in names)
    for count, most, what in (
        (len(names), MAX_FILES, "files in a data set"),
        (max(entries.values()), MAX_ENTRIES, "entries in a folder"),
        (largest, MAX_NBYTES, "bytes in a file"),
    ):
        if count > most:
            raise InvalidValueError(
                f"{path} has {count:,} {what}, and the hub takes {most:,}: publish parts of it (export, a collection "
                "of stores), in data sets of their own"
            )
    return names


def _sha256(path: Path, names: list[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        with (path / name).open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return digest.hexdigest()
