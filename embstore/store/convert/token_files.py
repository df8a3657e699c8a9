"""Hidden states of token sequences: safetensors files of vLLM and speculators, Arrow datasets of SAELens."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import CorpusError, InvalidValueError, StoreFormatError, StoreNotFoundError, quoted
from embstore.store.index import Index, Strings
from embstore.store.storage.files import MappedFile, read_json
from embstore.store.storage.safetensors import parse
from embstore.store.vectors import float32_of_bfloat16

IDS, STATES = ("token_ids", "input_ids"), "hidden_states"
_HOOK = re.compile(r"blocks\.(\d+)\.hook_resid_(pre|post)")


class SafetensorsSequences:
    """One file a sequence: `token_ids` or `input_ids` [n], and `hidden_states` [n, layer, feature] or [n, feature]."""

    layers: tuple[int, ...] | None = None  # the files do not say which they are

    def __init__(self, path: Path) -> None:
        names = path.glob("*.safetensors") if path.is_dir() else [path]
        self.paths = sorted(names, key=lambda name: [int(part) for part in re.findall(r"\d{1,18}", name.stem)])

    def __len__(self) -> int:
        return len(self.paths)

    def where(self, number: int) -> str:
        return str(self.paths[number])

    def read(self, number: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the token ids [n] and the vectors [n, layer, feature] of a sequence."""
        path = self.where(number)
        arrays = parse(MappedFile(path).bytes, path=path)
        name = next((name for name in IDS if name in arrays), None)
        if name is None or STATES not in arrays:
            raise StoreFormatError(f"{path} has {', '.join(arrays) or 'nothing'}, not {' or '.join(IDS)} and {STATES}")
        ids, vectors = arrays[name].reshape(-1), arrays[STATES]
        if vectors.dtype == np.uint16:
            vectors = float32_of_bfloat16(vectors)
        return ids.astype(np.int64), vectors[:, None] if vectors.ndim == 2 else vectors


class SAELensSequences:
    """The dataset of SAELens' CacheActivationsRunner: a column `blocks.N.hook_resid_pre` (or post), and `token_ids`."""

    def __init__(self, path: Path) -> None:
        try:
            files = [path / each["filename"] for each in read_json(path / "state.json")["_data_files"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreFormatError(f"{path / 'state.json'} does not list the files of a dataset: {error}") from None
        self._read = lru_cache(1)(self._frame)
        self._starts = np.concatenate([[0], np.cumsum([len(self._read(file)) for file in files])])
        self._files = files
        columns = self._read(files[0]).columns if files else []
        hooks = [name for name in columns if _HOOK.fullmatch(name)]
        if len(hooks) != 1 or "token_ids" not in columns:
            raise StoreFormatError(
                f"{path} has the columns {', '.join(columns)}: token_ids and one of the residual stream, such as "
                "blocks.6.hook_resid_pre, are needed"
            )
        self._hook = hooks[0]
        found = _HOOK.fullmatch(self._hook)
        assert found is not None
        self.layers: tuple[int, ...] | None = (int(found[1]) + (found[2] == "post"),)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def where(self, number: int) -> str:
        file = int(np.searchsorted(self._starts, number, side="right")) - 1
        return f"{self._files[file]}, row {number - self._starts[file]}"

    @staticmethod
    def _frame(file: Path) -> Any:
        import polars as pl

        try:
            frame = pl.read_ipc_stream(file)
            return frame.with_columns(each.ext.storage() for each in frame if isinstance(each.dtype, pl.BaseExtension))
        except (pl.exceptions.PolarsError, OSError) as error:
            raise StoreFormatError(f"{file} is not an Arrow stream: {str(error).splitlines()[0]}") from None

    def read(self, number: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the token ids [n] and the vectors [n, 1, feature] of a sequence."""
        file = int(np.searchsorted(self._starts, number, side="right")) - 1
        row = self._read(self._files[file])[int(number - self._starts[file])]
        ids = row["token_ids"].explode().to_numpy().astype(np.int64)
        tokens = row[self._hook].explode()
        return ids, tokens.explode().to_numpy().reshape(len(tokens), 1, -1)


Sequences = SafetensorsSequences | SAELensSequences


def open_sequences(path: Path) -> Sequences | None:
    """Return the sequences at a path; None where it is no such file or folder."""
    if (path / "state.json").exists():
        return SAELensSequences(path)
    if path.suffix == ".safetensors" or (path.is_dir() and any(path.glob("*.safetensors"))):
        if not path.exists():
            raise StoreNotFoundError(f"there is no file at {path}")
        return SafetensorsSequences(path)
    return None


def load_tokenizer(model: Any) -> Any:
    """Return the tokenizer in a folder of a model or in a `tokenizer.json`, or that of a name on the hub."""
    from tokenizers import Tokenizer

    if model is None:
        raise InvalidValueError("token ids need the tokenizer that made them: give the model, its folder or name")
    path = Path(model)
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(path)) if path.exists() else Tokenizer.from_pretrained(str(model))
    except Exception as error:
        raise InvalidValueError(f"{quoted(str(model))} has no tokenizer.json: {str(error).splitlines()[0]}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class TokenIndex:
    """The index of token sequences: a row each token, whose form is its spelling; tokens of one word share a position.

    Raises CorpusError for ids that the tokenizer or the text contradicts.
    """

    def __init__(self, sequences: Sequences, tokenizer: Any, texts: Iterable[str] | None) -> None:
        self._tokenizer = tokenizer
        self._types: dict[str, int] = {}
        rows: list[NDArray[np.int32]] = []
        positions: list[NDArray[np.int32]] = []
        sentences: list[str] = []
        given = None if texts is None else iter(texts)
        digest = hashlib.sha256()
        self.shape = (0, 0)
        for number in range(len(sequences)):
            ids, vectors = sequences.read(number)
            where = sequences.where(number)
            self._check(ids, vectors, where)
            spelled = self._spelled(ids, where)
            if given is not None:
                self._check_text(ids, next(given, None), where)
            digest.update(f"{len(ids)} ".encode() + ids.astype("<i8").tobytes())
            starts = _word_starts(spelled)
            words = np.split(ids, np.flatnonzero(starts)[1:])
            rows.append(np.array([self._types.setdefault(each, len(self._types)) for each in spelled], np.int32))
            positions.append((np.cumsum(starts) - 1).astype(np.int32))
            sentences.append(" ".join(self._word(each.tolist()) for each in words))
        if given is not None and next(given, None) is not None:
            raise CorpusError(f"the corpus has more texts than the {len(sequences)} sequences: give theirs")
        self.sha256 = digest.hexdigest()
        if not rows:
            raise StoreFormatError("there are no token sequences to import")
        counts = np.array([len(each) for each in rows])
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.index = Index(
            type=np.concatenate(rows),
            sentence=np.repeat(np.arange(len(counts)), counts),
            position=np.concatenate(positions),
            subwords=np.ones(int(indptr[-1]), np.int16),
            words=Strings.of(self._types),
            texts=Strings.of(sentences),
            indptr=indptr,
            source=np.arange(len(counts)),
        )

    def _check(self, ids: NDArray[np.int64], vectors: NDArray[Any], where: str) -> None:
        if ids.ndim != 1 or vectors.ndim != 3 or vectors.dtype.kind != "f" or not len(ids):
            raise StoreFormatError(f"{where}: token ids {list(ids.shape)} and hidden states {list(vectors.shape)}")
        if len(vectors) != len(ids):
            raise CorpusError(f"{where} has {len(ids)} token ids and hidden states of {len(vectors)} tokens")
        self.shape = self.shape if any(self.shape) else (vectors.shape[1], vectors.shape[2])
        if vectors.shape[1:] != self.shape:
            raise StoreFormatError(f"{where} has {vectors.shape[1:]} layers and features, the first one {self.shape}")

    def _spelled(self, ids: NDArray[np.int64], where: str) -> list[str]:
        size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        spelled: list[str] = []
        for at, number in enumerate(ids.tolist()):
            found = self._tokenizer.id_to_token(number) if 0 <= number < 2**32 else None
            if found is None:
                raise CorpusError(
                    f"{where}: token {at} has the id {number}, which the tokenizer does not have ({size:,} ids): give "
                    "the model that the file was made with"
                )
            spelled.append(found)
        return spelled

    def _check_text(self, ids: NDArray[np.int64], text: str | None, where: str) -> None:
        if text is None:
            raise CorpusError(f"{where} has no text in the corpus: give the one that the sequences are of")
        encoded = [self._tokenizer.encode(text, add_special_tokens=special).ids for special in (True, False)]
        decoded = "".join(self._tokenizer.decode(ids.tolist()).split())
        if ids.tolist() not in encoded and decoded != "".join(text.split()):
            raise CorpusError(
                f"{where}: the token ids spell {decoded[:40]!r}, but its text is {text[:40]!r}: give the tokenizer and "
                "the corpus that the file was made with"
            )

    def _word(self, ids: Sequence[int]) -> str:
        """Return the text of a word without white space; the spelling of its tokens where nothing else is left."""
        text = "".join(self._tokenizer.decode(list(ids)).split())
        return (
            text.lstrip("\u2581")
            or "".join("".join(self._tokenizer.id_to_token(number).split()) for number in ids)
            or "\u2581"
        )


def _word_starts(spelled: Sequence[str]) -> NDArray[np.bool_]:
    """Return whether each token begins a word, by the marks of byte-level BPE, SentencePiece and WordPiece."""
    if any(each.startswith("##") for each in spelled):
        starts = np.array([not each.startswith("##") for each in spelled])
    elif any(each.startswith(("\u0120", "\u2581")) for each in spelled):
        starts = np.array([each.startswith(("\u0120", "\u2581", "\u010a", "<")) for each in spelled])
    else:
        starts = np.ones(len(spelled), bool)
    starts[0] = True
    return starts


def tokenizer_sha256(tokenizer: Any) -> str:
    """Return the SHA-256 of a tokenizer's description."""
    return hashlib.sha256(json.dumps(json.loads(tokenizer.to_str()), sort_keys=True).encode()).hexdigest()
