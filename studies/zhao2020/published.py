"""What Zhao et al. 2020 print: BERT-base-uncased on Wiki-PSE, micro F1 over 34 classes; accuracy for POS.

Their layer i is the output of block i + 1, which the rest of embstore calls layer i + 1.
"""

from __future__ import annotations

N_LAYERS = 12

# Table 5: vectors without context. AVG-BERT by their layers 0-11.
UNCONTEXTUAL = {
    "Rand": {"dev": 0.269, "test": 0.267},
    "BERTw": {"dev": 0.653, "test": 0.652},
    "fastText": {"dev": 0.625, "test": 0.626},
    "GloVe": {"dev": 0.681, "test": 0.680},
    "PSE": {"dev": 0.790, "test": 0.787},
}
AVERAGED = {
    "dev": (0.746, 0.759, 0.764, 0.775, 0.786, 0.791, 0.794, 0.805, 0.811, 0.812, 0.813, 0.809),
    "test": (0.744, 0.756, 0.762, 0.773, 0.783, 0.788, 0.790, 0.802, 0.806, 0.809, 0.808, 0.806),
}

# Table 6: vectors in context.
BAGS = {
    "P-Rand": {"dev": 0.637, "test": 0.630},
    "P-fastText": {"dev": 0.707, "test": 0.707},
    "P-BERT": {"dev": 0.672, "test": 0.670},
}
CONTEXTUAL = {
    "dev": (0.649, 0.692, 0.711, 0.739, 0.771, 0.782, 0.795, 0.813, 0.826, 0.832, 0.836, 0.835),
    "test": (0.645, 0.688, 0.708, 0.737, 0.766, 0.777, 0.790, 0.810, 0.824, 0.828, 0.830, 0.831),
}

# Table 3: dev scores of fine-tuning (accuracy; micro F1 for NER). Table 7: POS by attention window, None for all.
FINETUNED = {"pos": 0.977, "classify": 0.928, "paraphrase": 0.853, "ner": 0.946}
POS_BY_WINDOW = {0: 0.886, 2: 0.973, 4: 0.975, 8: 0.976, 16: 0.977, 32: 0.977, None: 0.977}

# Figure 6, as section 4.4.2 states it: dev F1 of their layer 11, ours 12, on the POS-fine-tuned model, by setup.
TUNED_POS = {"layer": 12, "pretrained": 0.835, "a": 0.072, "b": 0.735}

CITATION = """@inproceedings{zhao-etal-2020-quantifying,
  title = {Quantifying the Contextualization of Word Representations with Semantic Class Probing},
  author = {Zhao, Mengjie and Dufter, Philipp and Yaghoobzadeh, Yadollah and Sch{\\"u}tze, Hinrich},
  booktitle = {Findings of the Association for Computational Linguistics: EMNLP 2020},
  year = {2020}, pages = {1219--1234}, doi = {10.18653/v1/2020.findings-emnlp.109}
}
"""
