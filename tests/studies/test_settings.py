"""Settings of studies that are not allowed are refused in one line when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from embstore.errors import InvalidValueError
from embstore_studies import STUDIES

NAN = float("nan")
WRONG: dict[str, list[dict[str, Any]]] = {
    "tenney2019": [
        *({"epochs": 0}, {"hidden_size": 0}, {"n_sentences": 0}, {"seeds": (-1,)}, {"resamples": -1}),
        {"unit": "letter"},
        *({"learning_rate": NAN}, {"traces": -1}, {"batch_size": "many"}),
    ],
    "liu2019": [
        *({"epochs": 0}, {"n_sentences": 0}, {"seeds": (-1,)}, {"resamples": 0}, {"batch_size": "many"}),
        *({"patience": -1}, {"learning_rate": NAN}),
    ],
    "hewitt2019": [{"n_sentences": 0}, {"ranks": (0,)}, {"tasks": ("ner",)}, {"trees": -1}, {"rank": 0}],
    "kovaleva2019": [
        *({"tuning": {}}, {"tuning": {"parse": "x"}}),
        *({"tuning": {"pos": "x"}, **change} for change in ({"n_sentences": 0}, {"seeds": ()}, {"how": "half"})),
    ],
    "wiedemann2019": [
        *({"n_sentences": 1}, {"test_share": 1.0}, {"ks": ()}, {"ks": (0,)}, {"last": 0}, {"resamples": 0}),
    ],
    "peters2018": [{"n_sentences": 0}, {"examples": -1}, {"resamples": 0}],
}


@pytest.mark.parametrize(("study", "change"), [(study, change) for study in WRONG for change in WRONG[study]])
def test_bad_settings_are_refused_in_one_line(study: str, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError):
        STUDIES[study](**change)
