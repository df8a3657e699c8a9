from .clark2019.settings import Clark2019 as Clark2019
from .ethayarajh2019.settings import Ethayarajh2019 as Ethayarajh2019
from .hewitt2019.settings import Hewitt2019 as Hewitt2019
from .kovaleva2019.settings import Kovaleva2019 as Kovaleva2019
from .liu2019.settings import Liu2019 as Liu2019
from .peters2018.settings import Peters2018 as Peters2018
from .registry import STUDIES as STUDIES
from .run import reproduce as reproduce
from .study import Section as Section
from .study import StudyResult as StudyResult
from .tenney2019.settings import Tenney2019 as Tenney2019
from .wiedemann2019.settings import Wiedemann2019 as Wiedemann2019
from .zhao2020.settings import Zhao2020 as Zhao2020

__all__ = [
    "STUDIES",
    "Clark2019",
    "Ethayarajh2019",
    "Hewitt2019",
    "Kovaleva2019",
    "Liu2019",
    "Peters2018",
    "Section",
    "StudyResult",
    "Tenney2019",
    "Wiedemann2019",
    "Zhao2020",
    "reproduce",
]
