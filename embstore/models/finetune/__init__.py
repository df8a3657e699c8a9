"""Fine-tuning of transformers on words (pos, ner) and on sentences (classify, paraphrase)."""

from embstore.models.finetune.epochs import Step
from embstore.models.finetune.settings import TASKS, Settings
from embstore.models.finetune.training import FineTuned, finetune

__all__ = ["TASKS", "FineTuned", "Settings", "Step", "finetune"]
