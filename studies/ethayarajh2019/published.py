"""Means by layer of the result files that the author published (kawine/contextual, commit c10c992).

Table 1 is in `embstore.vectors`.
"""

from __future__ import annotations

# Means by layer, from layer 0; None: not published.
LAYERS: dict[str, dict[str, tuple[float | None, ...]]] = {
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

CITATION = """@inproceedings{ethayarajh-2019-contextual,
  title = {How Contextual are Contextualized Word Representations? Comparing the Geometry of {BERT}, {ELM}o, and {GPT}-2
           Embeddings},
  author = {Ethayarajh, Kawin},
  booktitle = {Proceedings of EMNLP-IJCNLP 2019},
  year = {2019}, pages = {55--65}, doi = {10.18653/v1/D19-1006}
}
"""
