"""Fine-tuning as a whole: it learns, repeats, resumes, and leaves a checkpoint like any other."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from embstore.errors import EmbstoreError, NonFiniteError, StoreBusyError
from embstore.models import load_encoder
from embstore.models.encoder import Spans
from embstore_studies.finetuning.finetune import FineTuned, finetune
from embstore_studies.finetuning.record import RECORD, TRAINING, finish, last_checkpoint
from embstore_studies.finetuning.settings import TASKS, FineTuneSettings
from embstore_studies.finetuning.training import FineTuneRun
from tests.studies.finetuning import planted

QUICK: dict[str, Any] = {"batch_size": 10, "learning_rate": 4e-3, "epochs": 3, "device": "cpu"}


def tune(task: str, data: Path, **options: Any) -> FineTuned:
    """Fine-tune with the settings and the files among the options."""
    files = {name: options.pop(name) for name in ("train", "dev", "test") if name in options}
    names = {field.name for field in fields(FineTuneSettings)} & options.keys()
    settings = FineTuneSettings(**{name: options.pop(name) for name in names})
    return finetune({"folder": data, **files}, task=task, settings=settings, **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted.model(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted.folder(tmp_path_factory.mktemp("data") / "ner", "ner")


@pytest.fixture(scope="module")
def made(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> FineTuned:
    """A tagger of entities, with the dev data as test data."""
    out = tmp_path_factory.mktemp("made") / "ner"
    return tune("ner", data, test=data / "dev.conll", model=model, out=out, **QUICK)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(first: Path, second: Path) -> bool:
    one, two = weights(first), weights(second)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_a_planted_task_is_learned(made: FineTuned) -> None:
    best = made.frame.filter(made.frame["best"])
    value = {(split, metric): value for split, metric, value in best.select("split", "metric", "value").iter_rows()}
    assert value["dev", "accuracy"] > 0.95
    assert value["dev", "f1"] > 0.95
    assert value["test", "f1"] == value["dev", "f1"]
    assert made.frame["epoch"].to_list() == [1] * 6 + [2] * 6 + [3] * 6 + [made.record["best_epoch"]] * 5
    assert not (made.path / TRAINING).exists()


def test_the_record_follows_its_schema(made: FineTuned) -> None:
    schema = json.loads(resources.files("embstore.schemas").joinpath("finetuned_model.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    record = json.loads((made.path / RECORD).read_text())
    jsonschema.validate(record, schema)
    assert record == made.record
    assert record["labels"] == ["B-ANIMATE", "O"]
    assert record["data"]["train"]["examples"] == 60
    jsonschema.validate(
        made.frame.to_dicts(),
        json.loads(resources.files("embstore.schemas").joinpath("finetune_output.schema.json").read_text()),
    )


@pytest.mark.slow
def test_a_label_that_train_does_not_have_is_an_error(made: FineTuned, model: Path, data: Path, tmp_path: Path) -> None:
    """The tagger knows every word, so it would be right but for the labels that it never saw."""
    text = (data / "dev.conll").read_text()
    changed = tmp_path / "changed.conll"
    changed.write_text(text.replace("cat\tB-ANIMATE", "cat\tB-PET"))
    n_labels, n_unknown = text.count("\t"), text.count("cat\tB-ANIMATE")
    tuned = tune("ner", data, dev=changed, test=data / "dev.conll", model=model, out=tmp_path / "out", **QUICK)
    dev, test = tuned.record["epochs"][tuned.record["best_epoch"] - 1]["dev"], tuned.record["test"]
    assert (tuned.record["data"]["dev"]["labels_unknown"], tuned.record["data"]["test"]["labels_unknown"]) == (
        n_unknown,
        0,
    )
    assert tuned.record["labels"] == ["B-ANIMATE", "O"]
    assert n_unknown > 0
    assert test["accuracy"] - dev["accuracy"] == pytest.approx(n_unknown / n_labels, abs=0.02)
    assert dev["recall"] < test["recall"]
    changed.write_text(text.replace("B-ANIMATE", "B-PET").replace("\tO", "\tB-THING"))  # no batch has a known label
    none = tune("ner", data, dev=changed, model=model, out=tmp_path / "none", **{**QUICK, "epochs": 1})
    (epoch,) = none.record["epochs"]
    assert (epoch["dev"]["accuracy"], epoch["dev"]["f1"]) == (0, 0)
    assert np.isfinite([dev["loss"], epoch["dev"]["loss"]]).all()


def test_files_are_on_disk_before_the_record_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, model = tmp_path / "out", tmp_path / "out" / TRAINING / "model"
    model.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (model / name).write_text(name)
    calls: list[tuple[str, ...]] = []
    replace = os.replace
    monkeypatch.setattr(
        os, "fsync", lambda file: calls.append(("fsync", Path(os.readlink(f"/proc/self/fd/{file}")).name))
    )
    monkeypatch.setattr(os, "replace", lambda old, new: calls.append(("name", Path(new).name)) or replace(old, new))
    monkeypatch.setattr(shutil, "rmtree", lambda path: calls.append(("remove", Path(path).name)))
    finish(out, model, {"task": "pos"})
    assert sorted(calls[:2]) == [("fsync", "config.json"), ("fsync", "model.safetensors")]
    assert calls[2:] == [
        ("fsync", "model"),
        ("name", "config.json"),
        ("name", "model.safetensors"),
        ("fsync", "out"),
        ("fsync", f".{RECORD}.new"),
        ("name", RECORD),
        ("fsync", "out"),
        ("remove", TRAINING),
    ]


def test_files_name_no_folders_and_have_usual_rights(made: FineTuned, model: Path, data: Path) -> None:
    assert {path.stat().st_mode for path in made.path.iterdir()} == {(data / "dev.conll").stat().st_mode}
    texts = [path.read_text() for path in made.path.glob("*.json")]
    assert not any(str(folder) in text for text in texts for folder in (model.parent, data.parent, made.path.parent))
    assert made.record["model"] == model.name


def test_the_checkpoint_is_an_ordinary_one(made: FineTuned, model: Path) -> None:
    """Its hidden states through embstore are those of AutoModel, and its tokenizer is the model's, byte for byte."""
    encoder, original = load_encoder(made.path), load_encoder(model)
    assert encoder.info.tokenizer_sha256 == original.info.tokenizer_sha256
    written = hashlib.sha256((made.path / "model.safetensors").read_bytes()).hexdigest()
    assert encoder.info.weights_sha256 == written != original.info.weights_sha256 == made.record["weights"]
    sentence = ["the", "cat", "was", "antidisestablishmentarianism", "."]
    tokenized = encoder.tokenize([sentence])
    bounds = tokenized.word_indptr
    spans = Spans(np.zeros(5, np.int64), bounds[:-1].copy(), bounds[1:].copy())
    (pooled,) = encoder.encode(tokenized, spans, layers=[0, 1, 2, 3], pooling="last", batch_subwords=256)
    plain = transformers.AutoModel.from_pretrained(made.path).eval()
    inputs = transformers.AutoTokenizer.from_pretrained(made.path)(
        sentence, is_split_into_words=True, return_tensors="pt", padding=False, truncation=False
    )
    with torch.no_grad():
        states = plain(**inputs, output_hidden_states=True).hidden_states
    order = np.argsort(pooled.rows)
    for layer in range(4):
        expected = states[layer][0, bounds[1:]].numpy()  # [CLS] comes first: a word's last subword is at its end
        np.testing.assert_allclose(np.asarray(pooled.vectors)[layer][order], expected, atol=2e-5)
    assert not np.allclose(expected, 0)
    assert plain.config.label2id == {"B-ANIMATE": 0, "O": 1}
    before, after = weights(model), weights(made.path)
    assert not torch.equal(
        before["encoder.layer.0.output.dense.weight"], after["bert.encoder.layer.0.output.dense.weight"]
    )


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights(made: FineTuned, model: Path, data: Path, tmp_path: Path) -> None:
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    again = tune("ner", data, test=data / "dev.conll", model=model, out=tmp_path / "again", **QUICK)
    assert torch.equal(before, torch.random.get_rng_state())
    assert same(again.path, made.path)
    other = tune("ner", data, model=model, out=tmp_path / "other", seed=1, **QUICK)
    assert not same(other.path, made.path)


@pytest.mark.slow
def test_the_best_epoch_is_saved(model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores peak at the second of three epochs: the weights must be those after two."""
    scores = iter([0.2, 0.9, 0.5])
    seen: list[dict[str, torch.Tensor]] = []

    def metrics(self: FineTuneRun, prediction: Any) -> dict[str, float]:
        seen.append({name: value.clone() for name, value in self.trainable.network.state_dict().items()})
        return {"accuracy": next(scores)}

    monkeypatch.setattr(FineTuneRun, "_metrics", metrics)
    made = tune("pos", data, model=model, out=tmp_path / "out", **QUICK)
    assert made.record["best_epoch"] == 2
    written = weights(made.path)
    assert all(torch.equal(written[name], seen[1][name]) for name in written)
    assert not all(torch.equal(written[name], seen[2][name]) for name in written)


class Stopped(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 8, 12, 18])
def test_an_interrupted_training_is_resumed(
    after: int, made: FineTuned, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in an epoch, after one, and before the last files are moved: the weights are the same."""
    out = tmp_path / "out"

    def stop(done: int, total: int) -> None:
        if done == after < 18:
            raise Stopped

    def unfinished(*_: object) -> None:
        raise Stopped

    arguments = {"test": data / "dev.conll", "model": model, "out": out, **QUICK}
    with monkeypatch.context() as patch:
        patch.setattr("embstore_studies.finetuning.finetune.finish", unfinished)
        with pytest.raises(Stopped):
            tune("ner", data, progress=stop, **arguments)
    assert not (out / RECORD).exists()
    moved = tmp_path / "moved"
    out.rename(moved)
    first: list[int] = []
    again = tune("ner", data, progress=lambda done, total: first.append(done), **{**arguments, "out": moved})
    assert first[:1] == {1: [1], 8: [7], 12: [7], 18: []}[after]
    assert same(again.path, made.path)
    assert again.record["epochs"] == made.record["epochs"]
    assert again.record["resumed"] == (after > 1)
    assert sorted(os.listdir(moved)) == sorted(os.listdir(made.path))


def test_a_second_training_in_the_same_folder_is_refused(model: Path, data: Path, tmp_path: Path) -> None:
    arguments = {"model": model, "out": tmp_path / "out", **QUICK}

    def second(done: int, total: int) -> None:
        with pytest.raises(StoreBusyError, match=r"another process is training .*out; wait"):
            tune("ner", data, **arguments)
        raise Stopped

    with pytest.raises(Stopped):
        tune("ner", data, progress=second, **arguments)
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.slow
def test_an_incomplete_checkpoint_is_ignored(made: FineTuned, model: Path, data: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 14:
            raise Stopped

    out = tmp_path / "out"
    arguments = {"test": data / "dev.conll", "model": model, "out": out, **QUICK}
    with pytest.raises(Stopped):
        tune("ner", data, progress=stop, **arguments)
    for name in ("trainer_state.json", "model.safetensors", "optimizer.pt", "scheduler.pt"):
        copy = tmp_path / name
        shutil.copytree(out / TRAINING, copy)
        assert last_checkpoint(copy) == copy / "checkpoint-12"
        os.truncate(copy / "checkpoint-12" / name, 100)
        assert last_checkpoint(copy) == copy / "checkpoint-6"
        assert not (copy / "checkpoint-12").exists()
        (copy / "checkpoint-6" / name).unlink()
        assert last_checkpoint(copy) is None
    os.truncate(out / TRAINING / "checkpoint-12" / "optimizer.pt", 100)
    assert same(tune("ner", data, **arguments).path, made.path)


def test_a_finished_model_is_returned_as_it_is(made: FineTuned, model: Path, data: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in made.path.iterdir()}
    again = tune("ner", data, test=data / "dev.conll", model=model, out=made.path, **QUICK)
    assert again == made
    assert {path.name: path.stat().st_mtime_ns for path in made.path.iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"learning_rate": 1e-3}, r"learning rate 0\.004, this command has 0\.001"),
        ({"epochs": 4}, "epochs 3, this command has 4"),
        ({"attention_window": 2}, "attention window none, this command has 2"),
        ({"n_examples": 5}, "n examples none, this command has 5"),
        ({"task": "pos"}, "task ner, this command has pos"),
        ({"train": "dev.conll"}, "train data [0-9a-f]{12}"),
        ({"test": None}, "test data [0-9a-f]{12}.*has none"),
    ],
)
def test_other_settings_are_refused(
    made: FineTuned, model: Path, data: Path, changes: dict[str, Any], says: str
) -> None:
    arguments = {"task": "ner", "test": data / "dev.conll", "model": model, "out": made.path, **QUICK, **changes}
    if isinstance(arguments.get("train"), str):
        arguments["train"] = data / arguments["train"]
    with pytest.raises(EmbstoreError, match=says):
        tune(data=data, **arguments)


@pytest.mark.parametrize("task", list(TASKS))
def test_table_4_reaches_the_optimizer(task: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def train(self: transformers.Trainer, **_: Any) -> None:
        self.create_optimizer_and_scheduler(100)
        seen.append(self)
        raise Stopped

    monkeypatch.setattr(transformers.Trainer, "train", train)
    with pytest.raises(Stopped):
        tune(task, planted.folder(tmp_path / "data", task), model=model, out=tmp_path / "out", device="cpu")
    (trainer,) = seen
    assert trainer.args.per_device_train_batch_size == {"pos": 150, "ner": 32, "classify": 200, "paraphrase": 350}[task]
    assert trainer.args.train_batch_size == trainer.args.per_device_train_batch_size
    assert (trainer.args.num_train_epochs, trainer.args.max_grad_norm, trainer.args.gradient_accumulation_steps) == (
        5,
        0,
        1,
    )
    assert type(trainer.optimizer) is torch.optim.Adam
    parameters = 0
    for group in trainer.optimizer.param_groups:
        assert (group["lr"], group["weight_decay"], group["betas"], group["eps"]) == (5e-5, 0, (0.9, 0.999), 1e-8)
        parameters += sum(parameter.numel() for parameter in group["params"])
    assert parameters == sum(parameter.numel() for parameter in trainer.model.parameters())
    for _ in range(100):
        assert trainer.lr_scheduler.get_last_lr() == [5e-5] * len(trainer.optimizer.param_groups)
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    heads = [name for name, _ in trainer.model.named_parameters() if not name.startswith("bert.")]
    assert heads == ["classifier.weight", "classifier.bias"]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "paraphrase"])
def test_sentences_and_pairs(task: str, model: Path, tmp_path: Path) -> None:
    data = planted.folder(tmp_path / "data", task, train=120)  # enough that every seed learns it
    made = tune(task, data, model=model, out=tmp_path / "out", **{**QUICK, "epochs": 6})
    best = made.record["epochs"][made.record["best_epoch"] - 1]["dev"]
    assert best["accuracy"] > 0.9
    # what a user of the checkpoint does: the label of [CLS]
    network = transformers.AutoModelForTokenClassification.from_pretrained(made.path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(made.path)
    right = []
    for line in (data / "dev.tsv").read_text().splitlines():
        label, *texts = line.split("\t")
        inputs = tokenizer(*texts, return_tensors="pt", padding=False, truncation=True, max_length=128)
        with torch.no_grad():
            number = int(network(**inputs).logits[0, 0].argmax())
        right.append(network.config.id2label[number] == label)
    assert np.mean(right) == pytest.approx(best["accuracy"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["roberta", "distilbert", "gpt2"])
def test_other_kinds_of_model(name: str, data: Path, tmp_path: Path) -> None:
    model = planted.model(tmp_path / name, name=name)
    made = tune("pos", data, model=model, out=tmp_path / "out", attention_window=1, **QUICK)
    assert made.record["epochs"][-1]["dev"]["accuracy"] > 0.9
    assert load_encoder(made.path).info.num_hidden_layers == 3


@pytest.mark.slow
def test_a_model_fine_tuned_before_gets_a_new_head(made: FineTuned, data: Path, tmp_path: Path) -> None:
    seen = tune("pos", data, model=made.path, out=tmp_path / "out", **{**QUICK, "learning_rate": 1e-12, "epochs": 1})
    head = weights(seen.path)["classifier.weight"]
    assert not torch.allclose(head, weights(made.path)["classifier.weight"], atol=1e-3)


@pytest.mark.slow
def test_a_sample_of_train_is_seeded(model: Path, data: Path, tmp_path: Path) -> None:
    quick = {**QUICK, "epochs": 1, "n_examples": 20}
    first, again, other = (
        tune("pos", data, model=model, out=tmp_path / name, seed=seed, **quick)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert first.record["data"]["train"]["examples"] == 20
    assert same(first.path, again.path)
    assert first.record["data"]["train"]["labels"] != other.record["data"]["train"]["labels"]


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_training(model: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="choose a smaller one"):
        tune("pos", data, model=model, out=tmp_path / "out", **{**QUICK, "learning_rate": 1e30})


GOOD = "cat\tA\nmat\tB\n"
CONLLU = "1\tthe\tthe\t_\tDT\t_\t2\tdet\t_\t_\n\n"


@pytest.mark.parametrize(
    ("task", "files", "options", "says"),
    [
        ("pos", {"train.conll": "", "dev.conll": GOOD}, {}, "train.conll: no sentence in it"),
        ("pos", {"train.conll": GOOD, "dev.conll": ""}, {}, "dev.conll: no sentence in it"),
        ("pos", {"train.conll": "cat\tA\n", "dev.conll": GOOD}, {}, "every label is 'A'; training needs two or more"),
        ("pos", {"train.conll": GOOD}, {}, "there is no dev data in .*: name a file for dev"),
        ("pos", {"train.conll": GOOD, "train2.conll": GOOD, "dev.conll": GOOD}, {}, "several train files"),
        ("pos", {"train.conllu": CONLLU, "dev.conllu": CONLLU}, {}, "no word has a label in the column 'upos'"),
        ("pos", {"train.conll": GOOD, "dev.conll": GOOD}, {"label": "upos"}, "no label column 'upos'; it has label"),
        ("ner", {"train.conll": "cat\n", "dev.conll": GOOD}, {}, "train.conll:1: 1 column"),
        ("ner", {"train.conll": "cat\tS-PET\n", "dev.conll": GOOD}, {}, "the label 'S-PET' is not O, B- or I- with a"),
        ("classify", {"train.tsv": "A\n", "dev.tsv": "A\tx\n"}, {}, "train.tsv:1: 1 fields instead of 2"),
        ("classify", {"train.tsv": "A\t \n", "dev.tsv": "A\tx\n"}, {}, "train.tsv:1: the sentence is empty"),
        ("paraphrase", {"train.tsv": "s\t1.5\ta\tb\n", "dev.tsv": ""}, {}, "4 fields instead of 3"),
        ("classify", {"train.tsv": "A\tx\nB\ty\n", "dev.tsv": "A\tx\n"}, {"attention_window": 2}, "whole sentence"),
        ("pos", {}, {"attention_window": -1}, "attention window -1 is not allowed: give 0 or more words"),
        ("pos", {}, {"epochs": 0}, "epochs 0 is not allowed: give 1 or more"),
        ("pos", {}, {"batch_size": 0}, "batch size 0 is"),
        ("pos", {}, {"n_examples": 0}, "n examples 0 is"),
        ("pos", {}, {"learning_rate": 0.0}, "learning rate 0.0 is not"),
        ("pos", {}, {"learning_rate": float("nan")}, "learning rate nan is"),
        ("pos", {}, {"seed": -1}, "seed -1 is not allowed: give 0 to 4,294,967,295"),
        ("pos", {}, {"seed": 2**32}, "seed 4294967296 is not allowed"),
        ("pos", {}, {"epochs": "3"}, "epochs '3' is not allowed"),
        ("pos", {}, {"epochs": None}, "epochs None is not allowed"),
        ("pos", {}, {"batch_size": 2.5}, "batch size 2.5 is not allowed"),
        ("pos", {}, {"learning_rate": "x"}, "learning rate 'x' is not allowed"),
        ("pos", {"train.conll": GOOD, "dev.conll": GOOD}, {"model": 3}, "the model is 3: give the name"),
        ("parse", {}, {}, "unknown task 'parse'; allowed are pos, ner, classify, paraphrase"),
        ("pos", {}, {"device": "gpu"}, "unknown device 'gpu'"),
        ("pos", {}, {"device": "cuda:1"}, "fine-tuning uses the first GPU, not cuda:1"),
        ("pos", {"train.conll": GOOD, "dev.conll": GOOD}, {"max_length": 2}, "no space for a word"),
        ("pos", {"train.conll": GOOD, "dev.conll": GOOD}, {"max_length": 999}, "accepts at most 320 subwords"),
        ("pos", {"train.conll": GOOD, "dev.conll": GOOD}, {"model": "gone/model/here"}, "there is no model folder"),
    ],
)
def test_bad_input_is_one_line(
    task: str,
    files: dict[str, str],
    options: dict[str, Any],
    says: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if options.get("device") == "cuda:1":  # as if there were two
        monkeypatch.setattr("embstore_studies.finetuning.finetune.choose_device", torch.device)
    folder = tmp_path / "data"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    arguments = {"model": model, "out": tmp_path / "out", "device": "cpu", **options}
    with pytest.raises(EmbstoreError, match=says) as error:
        tune(task, folder, **arguments)
    assert error.value.exit_status == 2
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_content_is_refused(model: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(EmbstoreError, match="contains something other"):
        tune("ner", data, model=model, out=tmp_path, **QUICK)
    with pytest.raises(EmbstoreError, match="is a file"):
        tune("ner", data, model=model, out=tmp_path / "letter.txt", **QUICK)
    with pytest.raises(EmbstoreError, match="there is no folder"):
        tune("ner", data, model=model, out=tmp_path / "gone" / "out", **QUICK)
    assert os.listdir(tmp_path) == ["letter.txt"]


@pytest.mark.slow
def test_a_header_is_no_example(model: Path, tmp_path: Path) -> None:
    data = planted.folder(tmp_path / "data", "classify", train=12, dev=4)
    text = (data / "train.tsv").read_text()
    (data / "train.tsv").write_text("label\tsentence\n" + text)
    made = tune("classify", data, model=model, out=tmp_path / "out", **{**QUICK, "epochs": 1})
    assert made.record["labels"] == ["no", "yes"]
    assert made.record["data"]["train"]["examples"] == 12
