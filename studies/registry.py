"""The studies by name. A new study is a folder with settings.py and study.py, and a line here."""

from __future__ import annotations

from embstore_studies.clark2019.settings import Clark2019
from embstore_studies.ethayarajh2019.settings import Ethayarajh2019
from embstore_studies.hewitt2019.settings import Hewitt2019
from embstore_studies.kovaleva2019.settings import Kovaleva2019
from embstore_studies.liu2019.settings import Liu2019
from embstore_studies.peters2018.settings import Peters2018
from embstore_studies.settings import StudySettings
from embstore_studies.tenney2019.settings import Tenney2019
from embstore_studies.wiedemann2019.settings import Wiedemann2019
from embstore_studies.zhao2020.settings import Zhao2020

STUDIES: dict[str, type[StudySettings]] = {
    "zhao2020": Zhao2020,
    "ethayarajh2019": Ethayarajh2019,
    "tenney2019": Tenney2019,
    "hewitt2019": Hewitt2019,
    "kovaleva2019": Kovaleva2019,
    "peters2018": Peters2018,
    "wiedemann2019": Wiedemann2019,
    "clark2019": Clark2019,
    "liu2019": Liu2019,
}
