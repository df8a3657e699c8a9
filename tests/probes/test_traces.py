"""Traces of sentences: against a slow loop over targets, labels and layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embstore.corpus.formats.edge import EdgeSentence, EdgeTarget
from embstore.errors import InvalidValueError
from embstore.probes import EdgeProbe, Traces, Training, ambiguous_sentences, decision_reversals, trace
from tests.json_schemas import validator_of
from tests.probes.edge_store import Made, make

SMALL: dict[str, Any] = {"device": "cpu", "projection": 6, "hidden_size": 5}
FAST = Training(epochs=1, batch_size=4, learning_rate=2e-3)


def trained(made: Made, name: str, splits: dict[str, list[EdgeSentence]] | None = None, **settings: Any) -> EdgeProbe:
    probe, own = EdgeProbe(training=FAST, **SMALL, **settings), splits or made.splits
    return probe.fit(made.store, own["train"], own["dev"], name=name)


def slow(probe: EdgeProbe, made: Made, sentences: list[EdgeSentence]) -> list[dict[str, Any]]:
    """Compute the trace of one task edge by edge."""
    given = probe.predict(sentences, data=made.store).astype(np.float64)
    labels, found = probe.fitted.labels, []
    place = -1
    for sentence in sentences:
        for target in sentence.targets:
            place += 1
            layers = [
                {
                    label: float(value) / (float(row.sum()) if labels.single else 1)
                    for label, value in zip(labels.labels, row, strict=True)
                }
                for row in given[:, place]
            ]
            mean = {label: sum(row[label] for row in layers) / len(layers) for label in labels.labels}
            others = [label for label in labels.labels if label not in target.labels]
            wrong = max(others, key=lambda label: mean[label]) if others else None
            for right in labels.labels:
                if right in target.labels:
                    found.append(
                        {
                            "text": " ".join(sentence.words),
                            "spans": (target.span1, target.span2),
                            "right": right,
                            "wrong": wrong,
                            "rights": [row[right] for row in layers],
                            "wrongs": None if wrong is None else [row[wrong] for row in layers],
                            "highest": max(mean.values()),
                            "answered": [max(row, key=row.__getitem__) == right for row in layers]
                            if labels.single
                            else [bool(row[right] >= 0.5) for row in layers],
                        }
                    )
    return found


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("stores") / "single.zarr", sentences=24, layers=(0, 1, 3), planted=1)


@pytest.fixture(scope="module")
def traces(single: Made) -> Traces:
    """Two tasks on the same sentences: colours of spans, and whether a word is the first."""
    ends = {
        split: [
            EdgeSentence(
                each.words,
                [EdgeTarget((0, 1), (1, 2), ("first",)), EdgeTarget((2, 3), (0, 1), ("later",))],
            )
            for each in own
        ]
        for split, own in single.splits.items()
    }
    tasks = [
        (trained(single, "colours"), single.splits["test"]),
        (trained(single, "ends", ends), ends["test"][1:]),
    ]
    return trace(single.store, tasks)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.quick(2)
def test_a_trace_is_that_of_a_slow_loop(tmp_path: Path, several: bool, pairs: bool) -> None:
    made = make(tmp_path / "a.zarr", sentences=20, layers=(0, 1, 3), planted=1, several=several, pairs=pairs)
    held = made.splits["test"]
    if several:
        held[0].targets[0] = EdgeTarget(held[0].targets[0].span1, held[0].targets[0].span2, ("blue", "green", "red"))
    probes = trained(made, "colours")
    reports: list[tuple[int, int | None]] = []
    found = trace(made.store, [(probes, held)], progress=lambda done, total: reports.append((done, total)))
    expected = slow(probes, made, held)
    assert len(found) == len(expected) >= 12
    assert reports[-1] == (12, 12)
    place = 0
    for number, sentence in enumerate(held):
        own = found.trace(number)
        assert own.words == tuple(sentence.words)
        assert own.layers == (0, 1, 3)
        for each in own.annotations:
            slowly = expected[place]
            place += 1
            assert " ".join(own.words) == slowly["text"]
            assert (each.task, each.span1, each.span2) == ("colours", *slowly["spans"])
            assert (each.right, each.wrong) == (slowly["right"], slowly["wrong"])
            np.testing.assert_allclose(each.right_probability, slowly["rights"], atol=1e-6)
            if slowly["wrongs"] is None:
                assert np.isnan(each.wrong_probability).all()
            else:
                np.testing.assert_allclose(each.wrong_probability, slowly["wrongs"], atol=1e-6)
            assert each.highest == pytest.approx(slowly["highest"], abs=1e-6)
            assert each.average == pytest.approx(np.mean(slowly["rights"]), abs=1e-6)
            assert each.answered.tolist() == slowly["answered"]
    assert place == len(expected)


@pytest.mark.parametrize("rule", ["right", "highest"])
@pytest.mark.parametrize("limit", [0.35, 0.42, 0.55])
def test_ambiguous_sentences_are_those_of_a_loop(traces: Traces, rule: Any, limit: float) -> None:
    expected = []
    for number in range(len(traces.sentences)):
        own = traces.trace(number)
        ambiguous = [each for each in own.annotations if each.is_ambiguous(limit, rule)]
        assert own.ambiguous(limit, rule).annotations == tuple(ambiguous)
        ahead = [each.right_probability > each.wrong_probability for each in ambiguous]
        turned = sum(bool(each[0] != each[-1]) for each in ahead)
        if len(ambiguous) > 1:
            tasks = ", ".join(task for task in traces.tasks if task in {each.task for each in ambiguous})
            expected.append((number, len(ambiguous), turned, len(own.annotations), tasks, " ".join(own.words)))
    expected.sort(key=lambda row: (-row[1], -row[2], row[0]))
    found = ambiguous_sentences(traces, limit=limit, rule=rule)
    assert found.columns == ["sentence", "ambiguous", "turned", "edges", "tasks", "text"]
    assert found.rows() == expected
    assert limit < 0.5 or expected


def with_answers(traces: Traces, answers: NDArray[np.bool_]) -> Traces:
    """Return the traces with these answers, one row an edge."""
    rows = iter(answers)
    changed = [
        replace(own, annotations=tuple(replace(each, answered=next(rows)) for each in own.annotations))
        for own in traces.of_sentences
    ]
    return replace(traces, of_sentences=tuple(changed))


def test_reversals_are_those_of_a_loop(traces: Traces) -> None:
    one, two = np.random.default_rng(0).random((2, len(traces), 3)) < 0.5
    expected = {(task, layer): [0] * 5 for task in traces.tasks for layer in (1, 3)}
    edges = [each.task for own in traces.of_sentences for each in own.annotations]
    for task, right, other in zip(edges, one.tolist(), two.tolist(), strict=True):
        for place, layer in ((1, 1), (2, 3)):
            counts = expected[task, layer]
            counts[0] += 1
            counts[1] += right[place] and not right[place - 1]
            counts[2] += right[place - 1] and not right[place]
            counts[3] += place == 2 and right[0] == right[2] != right[1]
            counts[4] += right[place] != other[place]
    found = decision_reversals(with_answers(traces, one), with_answers(traces, two))
    assert found.columns == ["task", "layer", "edges", "gained", "lost", "returned", "by_seed"]
    assert {row[:2]: list(row[2:]) for row in found.rows()} == expected
    assert all(sum(counts) > counts[0] for counts in expected.values())
    assert decision_reversals(traces)["by_seed"].null_count() == 4
    fewer = replace(traces, of_sentences=traces.of_sentences[1:])
    with pytest.raises(InvalidValueError, match="not of the same edges"):
        decision_reversals(traces, fewer)


def test_the_default_rule_finds_what_the_rule_of_the_paper_finds(traces: Traces) -> None:
    limits = np.linspace(0, 1, 21).tolist()
    annotations = [each for own in traces.of_sentences for each in own.annotations]
    both = np.array(
        [[[e.is_ambiguous(at, rule) for e in annotations] for at in limits] for rule in ("right", "highest")]
    )
    assert not (both[1] & ~both[0]).any()
    assert (both[0] != both[1]).any()
    assert both[0, -1].all()
    assert all(each.is_ambiguous(each.average) for each in annotations), "the limit itself is ambiguous"
    assert not any(each.is_ambiguous(np.nextafter(each.average, 0)) for each in annotations)


def test_tasks_share_their_sentences(single: Made, traces: Traces) -> None:
    assert traces.sentences == tuple(tuple(each.words) for each in single.splits["test"])
    first, second = traces.trace(0), traces.trace(1)
    assert {each.task for each in first.annotations} == {"colours"}
    assert [each.task for each in second.annotations] == ["colours"] * 3 + ["ends"] * 2
    assert [each.span2 for each in second.annotations[3:]] == [(1, 2), (0, 1)]
    by_label = np.abs(second.annotations[3].right_probability + second.annotations[3].wrong_probability - 1)
    assert by_label.max() < 1e-12, "of two labels with one each the probabilities sum to 1"


def test_a_sentence_is_found_by_number_text_or_words(traces: Traces) -> None:
    words = traces.sentences[2]
    assert traces.find(2) == traces.find(" ".join(words)) == traces.find(words[0]) == 2
    common = next(
        word for word in {w for s in traces.sentences for w in s} if sum(word in s for s in traces.sentences) > 1
    )
    for wrong, message in (
        (99, "sentence 99 is not allowed: give 0 to 4"),
        (-1, "sentence -1 is not allowed"),
        ("nothing here", "no sentence of the 5 is or contains 'nothing here'"),
        ("", "no sentence of the 5 is or contains ''"),
        (common, r"\d sentences contain '" + common),
    ):
        with pytest.raises(InvalidValueError, match=message):
            traces.find(wrong)


def test_a_repeated_text_has_each_edge_once(single: Made) -> None:
    probes = trained(single, "colours")
    sentence = single.splits["test"][0]
    other = EdgeSentence(sentence.words, [EdgeTarget((1, 2), None, ("red",)), sentence.targets[0]])
    found = trace(single.store, [(probes, [sentence, single.splits["test"][1], other])])
    assert len(found.sentences) == 2
    spans = [(each.span1, each.right) for each in found.trace(0).annotations]
    assert spans == [(each.span1, each.labels[0]) for each in sentence.targets] + [((1, 2), "red")]


def test_unknown_labels_are_left_out(single: Made) -> None:
    probes = trained(single, "colours")
    words = single.splits["test"][0].words
    strange = EdgeSentence(words, [EdgeTarget((0, 1), None, ("mauve",)), EdgeTarget((1, 2), None, ("red",))])
    found = trace(single.store, [(probes, [strange])])
    assert [each.right for each in found.trace(0).annotations] == ["red"]
    assert "1 labels that train does not have" in found.notes[0]
    with pytest.raises(InvalidValueError, match="no target has a label that the probes know"):
        trace(single.store, [(probes, [EdgeSentence(words, strange.targets[:1])])])


def test_bad_input_is_one_line(single: Made, traces: Traces) -> None:
    probes, test = trained(single, "colours"), single.splits["test"]
    fewer = trained(single, "fewer", layers=[0, 1])
    pair = [EdgeSentence(test[0].words, [EdgeTarget((0, 1), (1, 2), ("red",))])]
    for call, message in (
        (lambda: trace(single.store, []), "there are no probes to trace"),
        (lambda: trace(single.store, [(probes, test), (probes, test)]), "two tasks are called colours"),
        (lambda: trace(single.store, [(probes, test), (fewer, test)]),
         "the probes of fewer are over layers 0, 1, those of colours over 0, 1, 3"),
        (lambda: trace(single.store, [(probes, pair)]), "the targets have two spans and the probes read one"),
        (lambda: trace(single.store, [(probes, test)], seed=7), "the probes of colours have no seed 7"),
        (lambda: ambiguous_sentences(traces, limit=1.5), "limit 1.5 is not allowed"),
        (lambda: ambiguous_sentences(traces, rule="left"), "unknown rule 'left'; allowed are right, highest"),
    ):  # fmt: skip
        with pytest.raises(InvalidValueError, match=message):
            call()


def test_the_rows_are_of_the_schema(traces: Traces) -> None:
    validator = validator_of("trace_output")
    frame = traces.trace(1).frame
    assert len(frame) == 5 * 3
    validator.validate(frame.to_dicts())
    validator.validate(ambiguous_sentences(traces, limit=0.9).to_dicts())
    assert frame["span2"].to_list()[-3:] == [traces.sentences[1][0]] * 3
    assert not validator.is_valid([frame.to_dicts()[0] | {"right_probability": 2}])
