"""What the text of Tenney et al. 2019 states of BERT-large on OntoNotes and others, layers counted as in embstore.

The numbers of its Figure 1 are in the drawing alone.
"""

from __future__ import annotations

# The order that section 4 states, earliest first, by both metrics.
ORDER = ("pos", "constituents", "dependencies", "semantic-roles", "coreference")
N_LAYERS = 24
POS_AT_LAYER_0 = 0.89  # accuracy on dev (section 4.1)
HIGHEST_WEIGHTS = (9, 20)  # the layers where mixing weights are concentrated, of many tasks (section 4)
HIGHEST_GAINS = (1, 7)  # the layers of the highest differential scores, of many tasks (section 4)

CITATION = """@inproceedings{tenney-etal-2019-bert,
  title = {{BERT} Rediscovers the Classical {NLP} Pipeline},
  author = {Tenney, Ian and Das, Dipanjan and Pavlick, Ellie},
  booktitle = {Proceedings of the 57th Annual Meeting of the Association for Computational Linguistics},
  year = {2019}, pages = {4593--4601}, doi = {10.18653/v1/P19-1452}
}
"""
