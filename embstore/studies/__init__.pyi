from .run import reproduce as reproduce
from .settings import STUDIES as STUDIES
from .settings import Ethayarajh2019 as Ethayarajh2019
from .settings import Hewitt2019 as Hewitt2019
from .settings import Tenney2019 as Tenney2019
from .settings import Zhao2020 as Zhao2020
from .study import Section as Section
from .study import StudyResult as StudyResult

__all__ = ["STUDIES", "Ethayarajh2019", "Hewitt2019", "Section", "StudyResult", "Tenney2019", "Zhao2020", "reproduce"]
