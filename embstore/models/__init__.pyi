from .chat import ChatTemplate as ChatTemplate
from .chat import chat_template as chat_template
from .checkpoint import save_untrained as save_untrained
from .encoder import Encoder as Encoder
from .encoder import ModelInfo as ModelInfo
from .encoder import Pooled as Pooled
from .encoder import Pooling as Pooling
from .encoder import Spans as Spans
from .encoder import StageTimes as StageTimes
from .encoder import Tokenized as Tokenized
from .finetuning.data import find_splits as find_splits
from .finetuning.finetune import FineTuned as FineTuned
from .finetuning.finetune import finetune as finetune
from .finetuning.settings import FineTuneSettings as FineTuneSettings
from .loading import bag_encoder as bag_encoder
from .loading import encoder_from_shorthand as encoder_from_shorthand
from .loading import load_encoder as load_encoder
from .loading import model_kind as model_kind
from .loading import random_encoder as random_encoder
from .loading import subword_encoder as subword_encoder
from .loading import vector_encoder as vector_encoder
from .static.encoder import StaticEncoder as StaticEncoder
from .static.shorthand import absolute_shorthand as absolute_shorthand
from .static.shorthand import is_shorthand as is_shorthand
from .static.shorthand import locate as locate

__all__ = [
    "ChatTemplate",
    "Encoder",
    "FineTuneSettings",
    "FineTuned",
    "ModelInfo",
    "Pooled",
    "Pooling",
    "Spans",
    "StageTimes",
    "StaticEncoder",
    "Tokenized",
    "absolute_shorthand",
    "bag_encoder",
    "chat_template",
    "encoder_from_shorthand",
    "find_splits",
    "finetune",
    "is_shorthand",
    "load_encoder",
    "locate",
    "model_kind",
    "random_encoder",
    "save_untrained",
    "subword_encoder",
    "vector_encoder",
]
