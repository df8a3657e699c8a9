"""`embstore reproduce` refuses what it cannot use in one line, before any step."""

from __future__ import annotations

from dataclasses import fields

import pytest

from embstore_studies import STUDIES
from embstore_studies.study import SETTINGS
from tests.cli.conftest import Work


@pytest.mark.parametrize(
    ("options", "settings", "says"),
    [
        ("zhao2020 corpus.txt -m model", "context_windows = [0, 2]", "full"),
        ("zhao2020 corpus.txt -m model", "traces = 3", "traces is not a setting"),
        ("zhao2020 corpus.txt -m model", "", "train"),
        ("tenney2019 tasks -m model -m other/model", "", "'model' cannot name a file of its own: give NAME=MODEL"),
        ("tenney2019 tasks -m a:b", "", "'a:b' cannot name a file of its own: give NAME=MODEL"),
        ("zhao2020 corpus.txt -m model", 'kind = "letter"', "letter"),
        ("tenney2019 tasks -m =", "", "--model '=': '' cannot name"),
        ("chomsky1957 tasks -m model", "", "unknown study 'chomsky1957': choose zhao2020"),
        ("zhao2020 corpus.txt -m model --kind a", "", "--kind is a setting: write kind = VALUE in a file"),
        ("ethayarajh2019 corpus.txt -m model --small", "", "ethayarajh2019 has one size"),
    ],
)
def test_bad_input(options: str, settings: str, says: str, work: Work) -> None:
    work.write("study.toml", settings + "\n")
    ran = work.run("reproduce", *options.split(), "--out", "study", "--config", "study.toml")
    assert (ran.status, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1
    assert not (work / "study" / "stores").exists()


@pytest.mark.parametrize("study", STUDIES)
def test_the_help_of_a_study_lists_its_settings_with_their_defaults(study: str, work: Work) -> None:
    ran = work.run("reproduce", study, "--help")
    assert ran.status == 0
    shown = " ".join(ran.out.partition(f"Settings of {study}")[2].split())
    for field in fields(STUDIES[study]):
        assert f" {field.name} " in shown, "a setting"
        assert SETTINGS[field.name][1] in shown, "what it is"
    assert "[default: 0]" in shown.partition(" seed ")[2]
    if study == "hewitt2019":
        assert 'epochs Of the training of probes, at most; none: the default of each probe. [default: "none"]' in shown
        assert "[default: [1, 2, 4, 8, 16, 32, 64]]" in shown
    assert f"Settings of {study}" not in work.run("reproduce", "--help").out
