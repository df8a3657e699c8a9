"""Fine-tune a transformer on labeled words or sentences with the Trainer of transformers: one linear layer on top."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import transformers
from transformers.trainer_utils import get_last_checkpoint

import embstore as es
from embstore.errors import CorpusError, InvalidValueError, MissingPackageError, quoted
from embstore_studies.study import digest_of, quiet, write_text

NO_LABEL = -100  # ignored by torch's cross entropy
RECORD = "finetuning.json"
SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "valid"), "test": ("test",)}
BIO = re.compile(r"O|[BI]-.+")


@dataclass(frozen=True)
class FineTuneTask:
    """A task: the sentences of an example (0: it labels words), its score, and its batch size in Zhao et al. 2020."""

    n_sentences: int
    metric: str
    batch_size: int


TASKS = {
    "pos": FineTuneTask(0, "accuracy", 150),
    "ner": FineTuneTask(0, "f1", 32),
    "classify": FineTuneTask(1, "accuracy", 200),
    "paraphrase": FineTuneTask(2, "accuracy", 350),
}


@dataclass(frozen=True, kw_only=True)
class FineTuneSettings:
    """How a model is fine-tuned; the defaults are those of Table 4 of Zhao et al. 2020.

    `batch_size`: None is that of the paper for the task. `learning_rate`: of Adam, constant. `max_length`: subwords of
    a sentence or pair. `n_examples`: train on that many, chosen at random. `seed`: of everything that is random.
    """

    epochs: int = 5
    batch_size: int | None = None
    learning_rate: float = 5e-5
    max_length: int = 128
    n_examples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "max_length", "n_examples"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InvalidValueError(f"{name} {value!r} is not allowed: give 1 or more")
        if not 0 < self.learning_rate < math.inf:
            raise InvalidValueError(f"learning_rate {self.learning_rate!r} is not allowed: give a number above 0")


@dataclass(frozen=True, slots=True)
class Item:
    """Words with a label each (None: without one), or one or two sentences as text with one label."""

    texts: Sequence[str]
    labels: Sequence[str | None]


def find_splits(data: str | Path | Mapping[str, str | Path]) -> dict[str, Path]:
    """Return the files of train, dev and, if there is one, test: of a folder, by their names, or as they are given."""
    if isinstance(data, Mapping):
        files = {split: Path(path) for split, path in data.items()}
    else:
        folder, files = Path(data), {}
        if not folder.is_dir():
            raise InvalidValueError(f"{folder} is not a folder: give one with train and dev files")
        for split, names in SPLIT_NAMES.items():
            matching = [path for path in sorted(folder.iterdir()) if any(name in path.name.lower() for name in names)]
            if len(matching) > 1:
                raise InvalidValueError(f"{folder} has several {split} files: give them by split")
            if matching:
                files[split] = matching[0]
    for split in ("train", "dev"):
        if split not in files:
            raise InvalidValueError(f"there is no {split} data: name a file for {split}")
    return files


def read_items(task: str, path: Path) -> list[Item]:
    """Read labeled data: CoNLL-U or columns of CoNLL for words, lines of `label TAB sentence (TAB sentence)`.

    Raises CorpusError, with the file and the line.
    """
    count = TASKS[task].n_sentences
    items: list[Item] = []
    if count == 0:
        form, column = ("conllu", "upos") if path.suffix == ".conllu" else ("conll", "label")
        for sentence in es.open_corpus(path, format=form):
            if column not in sentence.labels:
                raise CorpusError(f"{path}: no label column {column!r}; it has {', '.join(sentence.labels) or 'none'}")
            labels = list(sentence.labels[column])
            for start, stop in sentence.targets:  # the model predicts at the last word
                labels[stop - 1], labels[start] = labels[start], None
            items.append(Item(sentence.words, labels))
    else:
        lines = path.read_text("utf-8").splitlines() if path.is_file() else []
        for number, line in enumerate(lines, 1):
            fields = [field.strip() for field in line.split("\t")]
            if not line.strip() or (number == 1 and fields[0] == "label"):
                continue
            if len(fields) != count + 1 or not all(fields):
                raise CorpusError(f"{path}:{number}: {quoted(line)}: give a label and {count} sentences, by tabs")
            items.append(Item(fields[1:], fields[:1]))
    names = {label for item in items for label in item.labels if label is not None}
    if not names:
        raise CorpusError(f"{path} contains no labeled sentence")
    if TASKS[task].metric == "f1" and (other := next((name for name in names if not BIO.fullmatch(name)), None)):
        raise CorpusError(f"{path}: the label {quoted(other)} is not O, B- or I- with a type (BIO)")
    return items


def sampled(items: list[Item], count: int | None, seed: int) -> list[Item]:
    """Return `count` items, chosen without replacement, in their order; all if there are no more."""
    if count is None or count >= len(items):
        return items
    chosen = np.random.default_rng(seed).choice(len(items), count, replace=False)
    return [items[index] for index in np.sort(chosen)]


def label_names(path: Path, items: Sequence[Item], others: Sequence[Item]) -> tuple[list[str], list[str]]:
    """Return the labels of train and those that only other data have, which are never predicted: errors."""
    names, other = ({label for item in part for label in item.labels if label is not None} for part in (items, others))
    if len(names) < 2:
        raise CorpusError(f"{path}: every label is {quoted(min(names))}; training needs two or more")
    return sorted(names), sorted(other - names)


def encode(tokenizer: Any, items: Sequence[Item], names: Sequence[str], task: str, max_length: int) -> list[Any]:
    """Return examples: the label of a word is at its last subword, that of sentences at the first one, [CLS].

    Sentences without a label within the maximum length are left out.
    """
    numbers, examples = {name: number for number, name in enumerate(names)}, []
    for item in items:
        if TASKS[task].n_sentences:
            encoded = tokenizer(*item.texts, truncation=True, max_length=max_length)
        else:
            encoded = tokenizer(list(item.texts), is_split_into_words=True, truncation=True, max_length=max_length)
        words = [-1 if word is None else word for word in encoded.word_ids()]
        labels = [NO_LABEL] * len(words)
        if TASKS[task].n_sentences:
            labels[0] = numbers[str(item.labels[0])]
        else:
            whole = len(words) < max_length
            for at, word in enumerate(words):
                is_last = word >= 0 and word not in words[at + 1 :]
                label = item.labels[word] if is_last else None
                if label is not None and (whole or word < max(words)):  # the last word may be cut
                    labels[at] = numbers[label]
        if any(label != NO_LABEL for label in labels):
            examples.append({**encoded, "labels": labels})
    if not examples:
        raise InvalidValueError("no labeled word is within the maximum length; choose a longer one")
    return examples


@dataclass(frozen=True)
class Collator:
    """Makes one batch of examples, padded at the end."""

    padding: int

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        fills = {"input_ids": self.padding, "labels": NO_LABEL}
        return {
            name: torch.nn.utils.rnn.pad_sequence(
                [torch.tensor(example[name]) for example in examples],
                batch_first=True,
                padding_value=fills.get(name, 0),
            )
            for name in examples[0]
        }


class _Trainer(transformers.Trainer):
    """Leaves labels that the network does not have out of the loss."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        labels, last = inputs["labels"], model.config.num_labels - 1
        known = labels.masked_fill(labels > last, NO_LABEL)
        if bool((known == NO_LABEL).all()):  # a mean of nothing is not finite
            known = labels.clamp(max=last)
        return super().compute_loss(model, {**inputs, "labels": known}, *args, **options)


def entities(labels: Sequence[str]) -> set[tuple[int, int, str]]:
    """Return the entities of a sentence's BIO labels as (first word, word after the last, type).

    An entity begins at B-, and at an I- that does not continue a label of its type, as the scorer of the shared tasks
    reads it; any other label is outside.
    """
    spans = set()
    start, kind = 0, ""
    for index, label in enumerate([*labels, "O"]):
        mark, _, new_kind = label.partition("-")
        continues = mark == "I" and new_kind == kind
        if kind and not continues:
            spans.add((start, index, kind))
        if not continues:
            start, kind = index, new_kind if mark in ("B", "I") else ""
    return spans


def sentence_counts(metric: str, names: Sequence[str], gold: Any, predicted: Any) -> Any:
    """Return what each sentence adds to a score: int64 [sentences, 3], how many are right, gold and predicted.

    `gold`, `predicted`: numbers of labels [sentences, positions]; only positions with a gold label count. They are
    words or sentences for the accuracy, entities of BIO labels for the F1.
    """
    mask = gold != NO_LABEL
    if metric == "accuracy":
        right, total = ((gold == predicted) & mask).sum(1), mask.sum(1)
        return np.stack([right, total, total], 1)
    spans = [
        [entities([names[number] for number in row[chosen]]) for row, chosen in zip(numbers, mask, strict=True)]
        for numbers in (gold, predicted)
    ]
    return np.array([[len(one & two), len(one), len(two)] for one, two in zip(*spans, strict=True)])


@dataclass(frozen=True)
class FineTuned:
    """A fine-tuned model: its folder, which is an ordinary checkpoint, and the record in its finetuning.json."""

    path: Path
    record: dict[str, Any]

    @property
    def frame(self) -> pl.DataFrame:
        """A tidy frame `task, epoch, split, metric, value, best`: the scores on dev by epoch."""
        rows = [
            (self.record["task"], row["epoch"], "dev", metric, value, row["epoch"] == self.record["best_epoch"])
            for row in self.record["epochs"]
            for metric, value in row["dev"].items()
        ]
        return pl.DataFrame(rows, schema=["task", "epoch", "split", "metric", "value", "best"], orient="row")


def finetune(
    data: str | Path | Mapping[str, str | Path],
    *,
    task: str,
    model: str | Path,
    out: str | Path,
    settings: FineTuneSettings | None = None,
) -> FineTuned:
    """Fine-tune a transformer on a task and save the checkpoint of the epoch that is best on dev.

    Parameters
    ----------
    data
        A folder with files named train, dev and perhaps test, or the files by split.
    task
        "pos" (CoNLL-U) and "ner" (columns of CoNLL) label words; "classify" reads lines `label<TAB>sentence`,
        "paraphrase" lines `label<TAB>sentence1<TAB>sentence2`. A linear layer predicts the label from the last hidden
        state of a word's last subword, or of the first subword; labels of dev that train does not have are errors.
    model
        A model folder or the name of a model of the Hugging Face hub.
    out
        The folder to write. The same call resumes after the last complete epoch, and returns a finished model.
    settings
        None is those of Zhao et al. 2020.

    Raises
    ------
    InvalidValueError
        If `out` contains anything else or was made with other settings.
    CorpusError
        For data that cannot be read or trained on.
    MissingPackageError
        Without accelerate.
    """
    settings, out = settings or FineTuneSettings(), Path(out)
    if task not in TASKS:
        raise InvalidValueError(f"unknown task {task!r}; allowed are {', '.join(TASKS)}")
    if find_spec("accelerate") is None:
        raise MissingPackageError('fine-tuning needs accelerate: pip install "embstore[finetune]"')
    files = find_splits(data)
    train, dev = (read_items(task, files[split]) for split in ("train", "dev"))
    labels, unknown = label_names(files["train"], train, dev)
    plan: dict[str, Any] = {
        "task": task,
        "model": Path(model).name,
        "weights": es.load_encoder(model).info.weights_sha256,
        "data": {split: digest_of(files[split]) for split in ("train", "dev")},
        "settings": asdict(settings),
    }
    training, record = out / "training", out / RECORD
    if record.is_file():
        made = read_record(out)
        if {name: made.get(name) for name in plan if name != "model"} != {
            k: v for k, v in plan.items() if k != "model"
        }:
            raise InvalidValueError(f"{out} was fine-tuned with other data or settings: choose another folder")
        return FineTuned(out, made)
    if out.exists() and any(path.name != training.name for path in out.iterdir()):
        raise InvalidValueError(f"{out} contains something other than a fine-tuned model: choose another folder")
    kind = TASKS[task]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model, add_prefix_space=kind.n_sentences == 0)
    names = [*labels, *unknown]
    encoded = [
        encode(tokenizer, items, names, task, settings.max_length)
        for items in (sampled(train, settings.n_examples, settings.seed), dev)
    ]
    with own_randomness(settings.seed), quiet():
        network = transformers.AutoModelForTokenClassification.from_pretrained(
            model,
            dtype=torch.float32,
            id2label=dict(enumerate(labels)),
            label2id={label: number for number, label in enumerate(labels)},
            ignore_mismatched_sizes=True,
        )
        trainer = _Trainer(
            model=network,
            args=arguments(training, kind, settings),
            data_collator=Collator(tokenizer.pad_token_id or 0),
            train_dataset=encoded[0],
            eval_dataset=encoded[1],
            compute_metrics=lambda prediction: scores_of(kind.metric, names, prediction),
            preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
            optimizer_cls_and_kwargs=(torch.optim.Adam, {"lr": settings.learning_rate}),
        )
        trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
        checkpoint: Any = get_last_checkpoint
        last = checkpoint(str(training)) if training.is_dir() else None
        trainer.train(resume_from_checkpoint=last)
        trainer.save_model(str(out))
    history = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    metrics = dict.fromkeys(("accuracy", kind.metric))
    epochs: list[dict[str, Any]] = [
        {"epoch": round(entry["epoch"]), "dev": {name: entry[f"eval_{name}"] for name in metrics}} for entry in history
    ]
    best = max(epochs, key=lambda row: row["dev"][kind.metric])  # the first one of equals
    tokenizer.save_pretrained(out)
    software = {name: version(name) for name in ("embstore", "torch", "transformers", "accelerate")}
    plan |= {"labels": labels, "metric": kind.metric, "epochs": epochs, "best_epoch": best["epoch"]}
    write_text(record, json.dumps({**plan, "software": software}, indent=1))
    return FineTuned(out, json.loads(record.read_text()))


def arguments(folder: Path, task: FineTuneTask, settings: FineTuneSettings) -> Any:
    """Return the arguments of the Trainer: a constant learning rate, no warm-up, weight decay or clipping."""
    return transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size or task.batch_size,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        seed=settings.seed,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model=task.metric,
        save_total_limit=2,
        remove_unused_columns=False,
        label_names=["labels"],
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=True,
        report_to="none",
    )


def scores_of(metric: str, names: Sequence[str], prediction: Any) -> dict[str, float]:
    """Return the accuracy and, of entities, the micro F1 of the most likely labels."""
    scores = {}
    for each in dict.fromkeys(("accuracy", metric)):
        right, gold, predicted = sentence_counts(each, names, prediction.label_ids, prediction.predictions).sum(0)
        scores[each] = float(2 * right / max(gold + predicted, 1))
    return scores


def read_record(model: str | Path) -> dict[str, Any]:
    """Return the record of a model that `finetune` saved; raises InvalidValueError for another folder."""
    try:
        record: dict[str, Any] = json.loads((Path(model) / RECORD).read_text("utf-8"))
        return record if record["labels"] else {}
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidValueError(f"{model} has no {RECORD}: give the folder that finetune has written") from None


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Seed Python, numpy and torch inside the block, and restore their states afterwards."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002 (the Trainer seeds this one)
    with torch.random.fork_rng():
        transformers.set_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002
