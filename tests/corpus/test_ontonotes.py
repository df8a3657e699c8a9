"""OntoNotes in CoNLL-2012 form: a small made folder, with its targets found by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from embstore.corpus import convert_ontonotes, read_edges
from embstore.errors import CorpusError, InputError, InvalidValueError, StorageError

# word, part of speech, parse, entity, two frames, coreference
COLUMNS = """
-LRB-  -LRB-  (TOP(S*      *          *         *       -
Ada    NNP    (NP(NP*      (PERSON*   (ARG0*    *       (7|(3
Smith  NNP    *)           *)         *         *       3)|(7
's     POS    *)           *          *)        *       7)
sings  VBZ    (VP*         *          (V*)      (ARG0*) 7)
,      ,      *            *          *         *       -
stops  VBZ    (VP*)        *          (C-V*)    (V*)    -
her    PRP$   (NP(NML*))   (GPE)      (ARG1*)   *       (7)|(9)
/.     .      *)))         *          *         *       -
"""
TEXT = "( Ada Smith 's sings , stops her ."
TARGETS = {
    "pos": "0:-LRB- 1:NNP 2:NNP 3:POS 4:VBZ 5:, 6:VBZ 7:PRP$ 8:.",
    "constituents": "1-3:NP 1-4:NP 6:VP 7:NML 7:NP 4-9:VP 0-9:S 0-9:TOP",
    "entities": "1-3:PERSON 7:GPE",
    "semantic-roles": "4>1-4:ARG0 4>6:C-V 4>7:ARG1 6>4:ARG0",
    "coreference": "1-3>1-5:0 1-3>2-4:0 1-3>7:0 1-3>7:0 1-5>2-4:1 1-5>7:1 1-5>7:0 2-4>7:1 2-4>7:0 7>7:0",
}


def conll(columns: str = COLUMNS, *, name: str = "nw/a", between: str = "  ") -> str:
    """Return a document of two parts: the sentence, then one without parse, entities, frames and mentions."""
    rows = []
    for place, line in enumerate(columns.strip().splitlines()):
        word, pos, parse, entity, *more = line.split()
        rows.append(between.join([name, "0", str(place), word, pos, parse, "-", "-", "-", "Ann", entity, *more]))
    plain = between.join([name, "1", "0", "Yes", "-", "(NOPARSE*)", "-", "-", "-", "-", "*", "-"])
    begin = "#begin document ({}); part 00{}\n"
    first = begin.format(name, 0) + "\n".join(rows) + "\n\n#end document\n"
    return first + begin.format(name, 1) + plain + "\n\n#end document\n"


def as_json(targets: str) -> list[dict[str, object]]:
    """Parse targets such as `4>1-4:ARG0`."""
    made = []
    for each in targets.split():
        spans, label = each.split(":", 1)
        ends = [list(map(int, span.split("-"))) for span in spans.split(">")]
        named = {f"span{number}": [end[0], end[-1] + (len(end) == 1)] for number, end in enumerate(ends, 1)}
        made.append({**named, "label": label})
    return made


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("between", ["   ", "\t"])
def test_every_task_has_the_targets_found_by_hand(tmp_path: Path, between: str) -> None:
    folder = write(tmp_path / "notes", {"train.english.v4_gold_conll": conll(between=between)})
    (tmp_path / ".out.partial" / "left by a kill").mkdir(parents=True)
    counts = convert_ontonotes(folder, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(TARGETS)
    for task, targets in TARGETS.items():
        path = tmp_path / "out" / task / "train.jsonl"
        info = {"source": "OntoNotes 5", "document": "nw/a part 0"}
        [line] = path.read_text().splitlines()
        assert json.loads(line) == {"text": TEXT, "targets": as_json(targets), "info": info}
        assert counts[task] == {"train": len(as_json(targets))}
        assert len(list(read_edges(path))) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"notes", "out"}


@pytest.mark.parametrize("layout", ["v4", "v12"])
def test_splits_are_those_of_the_folders(tmp_path: Path, layout: str) -> None:
    where = {
        "v4": {"train": "v4/data/train/data/english/annotations/nw/x.v4_gold_conll",
               "dev": "v4/data/development/data/english/annotations/nw/x.v4_gold_conll",
               "test": "v9/data/conll-2012-test/data/english/annotations/nw/x.v9_gold_conll"},
        "v12": {"train": "data/train/data/english/annotations/nw/x.gold_conll",
                "dev": "data/development/data/english/annotations/nw/x.gold_conll",
                "test": "data/test/data/english/annotations/nw/x.gold_conll"},
    }[layout]  # fmt: skip
    folder = write(tmp_path / "notes", {path: conll(name=split) for split, path in where.items()})
    unread = {"data/train/data/chinese/annotations/nw/x.gold_conll": "?", where["train"] + ".old": "?"}
    unread[where["dev"].replace("gold", "auto")] = "?"
    if layout == "v12":
        unread["data/conll-2012-test/data/english/annotations/nw/x.gold_conll"] = "?"
    counts = convert_ontonotes(write(folder, unread), tmp_path / "out" / "tasks")
    for split in where:
        [line] = (tmp_path / "out" / "tasks" / "pos" / f"{split}.jsonl").read_text().splitlines()
        assert json.loads(line)["info"]["document"] == f"{split} part 0"
    assert counts["entities"] == {"train": 2, "dev": 2, "test": 2}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("*)))", "*))", r":2: the span \(TOP is not closed in its sentence"),
        ("*)))", "*)))))", r":10: '\*\)\)\)\)\)' closes a span that is not open"),
        ("(PERSON*", "*", r":4: '\*\)' closes a span that is not open"),
        ("(7|(3", "(7", r":4: '3\)\|\(7' closes a mention that is not open"),
        ("(7)|(9)", "(7", r":9: the mention \(7 is not closed in its sentence"),
        ("(7)|(9)", "9", r":9: '9' is no mention"),
        ("(7)|(9)", "(7) 4", r":9: 15 columns instead of 14 as before"),
        ("Ada", "[WORD]", r":3: the words are left out: make the file with skeleton2conll.sh"),
    ],
)
def test_what_is_not_of_the_form_is_refused_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    folder = write(tmp_path / "notes", {"train.gold_conll": conll(COLUMNS.replace(old, new))})
    with pytest.raises(CorpusError, match=said):
        convert_ontonotes(folder, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"notes"}


def test_folders_without_a_use_are_refused(tmp_path: Path) -> None:
    good = write(tmp_path / "good", {"train.gold_conll": conll()})
    cases: dict[str, tuple[Path, str]] = {
        "gone": (tmp_path / "gone", "is not a folder"),
        "no train": (write(tmp_path / "dev", {"dev/x.gold_conll": conll()}), "no \\*gold_conll file of train"),
        "no split": (write(tmp_path / "any", {"x.gold_conll": conll()}), "neither its name nor a folder's"),
        "short": (write(tmp_path / "short", {"train.gold_conll": "a b c\n"}), ":1: 3 columns instead of 12 or more"),
    }
    for folder, said in cases.values():
        with pytest.raises(InputError, match=said):
            convert_ontonotes(folder, tmp_path / "out")
    with pytest.raises(InvalidValueError, match="exists: give a new folder"):
        convert_ontonotes(good, good)
    with pytest.raises(StorageError, match="Not a directory"):
        convert_ontonotes(good, good / "train.gold_conll" / "out")


def test_a_sentence_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.corpus.lines.MAX_SENTENCE", 300)
    folder = write(tmp_path / "notes", {"train.gold_conll": conll()})
    with pytest.raises(CorpusError, match=":6: a sentence of more than 300 characters"):
        convert_ontonotes(folder, tmp_path / "out")


def test_the_command_lists_the_targets(tmp_path: Path) -> None:
    from embstore_cli.main import app

    folder = write(tmp_path / "notes", {f"{split}.gold_conll": conll() for split in ("train", "dev")})
    ran = CliRunner().invoke(app, ["probe", "ontonotes", str(folder), str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.output
    assert [line.split() for line in ran.stdout.splitlines() if line.startswith("coref")] == [
        ["coreference", "10", "10"]
    ]
