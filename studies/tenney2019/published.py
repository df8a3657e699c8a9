"""What Tenney et al. 2019 state of BERT-large on OntoNotes and others, layers counted as in embstore."""

from __future__ import annotations

# The order that section 4 states, earliest first, by both metrics.
ORDER = ("pos", "constituents", "dependencies", "semantic-roles", "coreference")
N_LAYERS = 24
POS_AT_LAYER_0 = 0.89  # accuracy on dev (section 4.1)
HIGHEST_WEIGHTS = (9, 20)  # the layers where mixing weights are concentrated, of many tasks (section 4)
HIGHEST_GAINS = (1, 7)  # the layers of the highest differential scores, of many tasks (section 4)

# Figure 1: expected layer and center of gravity. They are in the drawing alone; these are the numbers that
# github.com/ml5885/model_internal_sleuthing (plots/plot_figure1_paper_comparison.py, commit 9161c0c) reads from it.
FIGURE1 = {
    "pos": {"expected_layer": 3.39, "center_of_gravity": 11.68},
    "constituents": {"expected_layer": 3.79, "center_of_gravity": 13.06},
    "dependencies": {"expected_layer": 5.69, "center_of_gravity": 13.75},
    "entities": {"expected_layer": 4.64, "center_of_gravity": 13.16},
    "semantic-roles": {"expected_layer": 6.54, "center_of_gravity": 13.63},
    "coreference": {"expected_layer": 9.47, "center_of_gravity": 15.80},
    "protoroles": {"expected_layer": 9.93, "center_of_gravity": 12.72},
    "relations": {"expected_layer": 9.40, "center_of_gravity": 12.83},
}

CITATION = """@inproceedings{tenney-etal-2019-bert,
  title = {{BERT} Rediscovers the Classical {NLP} Pipeline},
  author = {Tenney, Ian and Das, Dipanjan and Pavlick, Ellie},
  booktitle = {Proceedings of the 57th Annual Meeting of the Association for Computational Linguistics},
  year = {2019}, pages = {4593--4601}, doi = {10.18653/v1/P19-1452}
}
"""
