"""What the papers print, to be shown next to the results of a study.

Zhao et al. 2020: BERT-base-uncased on Wiki-PSE, micro F1 over 34 classes; accuracy for POS. Their layer i is the output
of block i + 1, which the rest of embstore calls layer i + 1.

Tenney et al. 2019: what the text states of BERT-large on OntoNotes and others, layers counted as in embstore. The
numbers of its Figure 1 are in the drawing alone.

Ethayarajh 2019: means by layer of the result files that the author published (kawine/contextual, commit c10c992);
Table 1 is in `embstore.vectors`.
"""

from __future__ import annotations

ZHAO_LAYERS = 12

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

# By the folders that tasks are in, as the figures of Tenney et al. call them and in their order.
TASKS = {
    "pos": "POS",
    "constituents": "Consts.",
    "dependencies": "Deps.",
    "entities": "Entities",
    "semantic-roles": "SRL",
    "coreference": "Coref.",
    "protoroles": "SPR",
    "relations": "Relations",
}
# The order that section 4 states, earliest first, by both metrics.
ORDER = ("pos", "constituents", "dependencies", "semantic-roles", "coreference")
TENNEY_LAYERS = 24
POS_AT_LAYER_0 = 0.89  # accuracy on dev (section 4.1)
HIGHEST_WEIGHTS = (9, 20)  # the layers where mixing weights are concentrated, of many tasks (section 4)
HIGHEST_GAINS = (1, 7)  # the layers of the highest differential scores, of many tasks (section 4)

# Means by layer, from layer 0; None: not published.
ETHAYARAJH_LAYERS: dict[str, dict[str, tuple[float | None, ...]]] = {
    "BERT-base-cased": {
        "anisotropy": (0.105, 0.168, 0.219, 0.245, 0.327, 0.377, 0.42, 0.398, 0.399, 0.484, 0.561, 0.675, 0.477),
        "intrasim": (0.435, 0.522, 0.57, 0.59, 0.642, 0.695, 0.726, 0.711, 0.72, 0.771, 0.82, 0.87, 0.776),
        "selfsim": (
            0.9544,
            0.921,
            0.871,
            0.8232,
            0.7984,
            0.7814,
            0.7653,
            0.7439,
            0.7314,
            0.7535,
            0.7815,
            0.8386,
            0.7548,
        ),
        "mev": (None, 0.0096, 0.015, 0.0199, 0.0226, 0.0244, 0.0251, 0.0281, 0.0286, 0.0256, 0.0229, 0.0256, 0.0395),
        "mev_baseline": (0.039, 0.025, 0.017, 0.012, 0.014, 0.012, 0.012, 0.01, 0.012, 0.015, 0.022, 0.04, 0.009),
    },
    "GPT-2": {
        "anisotropy": (0.611, 0.644, 0.597, 0.614, 0.587, 0.573, 0.578, 0.582, 0.595, 0.617, 0.667, 0.758, 0.978),
        "intrasim": (0.808, 0.825, 0.583, 0.549, 0.537, 0.559, 0.586, 0.614, 0.635, 0.658, 0.693, 0.768, 0.99),
        "selfsim": (
            0.917,
            0.9205,
            0.8996,
            0.908,
            0.8839,
            0.8649,
            0.8495,
            0.842,
            0.8382,
            0.8397,
            0.8517,
            0.8867,
            0.9854,
        ),
        "mev": (None, 0.1601, 0.2863, 0.3022, 0.3006, 0.3003, 0.2974, 0.2985, 0.3016, 0.3082, 0.3079, 0.3512, 0.7131),
        "mev_baseline": (0.062, 0.298, 0.969, 0.998, 0.998, 0.997, 0.997, 0.996, 0.995, 0.994, 0.992, 0.985, 0.829),
    },
    "ELMo": {
        "anisotropy": (0.008, 0.157, 0.136),
        "intrasim": (0.318, 0.582, 0.621),
        "selfsim": (1.0, 0.7442, 0.6415),
        "mev": (None, 0.0328, 0.0387),
        "mev_baseline": (0.087, 0.003, 0.004),
    },
}

ZHAO_CITATION = """@inproceedings{zhao-etal-2020-quantifying,
  title = {Quantifying the Contextualization of Word Representations with Semantic Class Probing},
  author = {Zhao, Mengjie and Dufter, Philipp and Yaghoobzadeh, Yadollah and Sch{\\"u}tze, Hinrich},
  booktitle = {Findings of the Association for Computational Linguistics: EMNLP 2020},
  year = {2020}, pages = {1219--1234}, doi = {10.18653/v1/2020.findings-emnlp.109}
}
"""
TENNEY_CITATION = """@inproceedings{tenney-etal-2019-bert,
  title = {{BERT} Rediscovers the Classical {NLP} Pipeline},
  author = {Tenney, Ian and Das, Dipanjan and Pavlick, Ellie},
  booktitle = {Proceedings of the 57th Annual Meeting of the Association for Computational Linguistics},
  year = {2019}, pages = {4593--4601}, doi = {10.18653/v1/P19-1452}
}
"""
ETHAYARAJH_CITATION = """@inproceedings{ethayarajh-2019-contextual,
  title = {How Contextual are Contextualized Word Representations? Comparing the Geometry of {BERT}, {ELM}o, and {GPT}-2
           Embeddings},
  author = {Ethayarajh, Kawin},
  booktitle = {Proceedings of EMNLP-IJCNLP 2019},
  year = {2019}, pages = {55--65}, doi = {10.18653/v1/D19-1006}
}
"""

# Hewitt & Manning 2019, Table 1: UUAS, DSpr, root accuracy and NSpr on test of the Penn Treebank with Stanford
# Dependencies. The names have the paper's layers; layer k of BERT there is our layer k + 1.
HEWITT_SCORES = {
    "Linear": (0.489, 0.58, 0.029, 0.27),
    "ELMo0": (0.268, 0.44, 0.543, 0.56),
    "Decay0": (0.517, 0.61, 0.543, 0.56),
    "Proj0": (0.598, 0.73, 0.644, 0.75),
    "ELMo1": (0.770, 0.83, 0.865, 0.87),
    "BERTBASE7": (0.798, 0.85, 0.880, 0.87),
    "BERTLARGE15": (0.825, 0.86, 0.894, 0.88),
    "BERTLARGE16": (0.817, 0.87, 0.901, 0.89),
}
HEWITT_CITATION = """@inproceedings{hewitt-manning-2019-structural,
  title = {A Structural Probe for Finding Syntax in Word Representations},
  author = {Hewitt, John and Manning, Christopher D.},
  booktitle = {Proceedings of NAACL-HLT 2019},
  year = {2019}, pages = {4129--4138}, doi = {10.18653/v1/N19-1419}
}
"""
