"""What Tenney et al. 2019 state of their tasks in words; the numbers of their figures are not in the text."""

from __future__ import annotations

# By the folders that tasks are in, as the paper's figures call them and in their order.
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

# "POS tags processed earliest, followed by constituents, dependencies, semantic roles, and coreference" (section 4).
ORDER = ("pos", "constituents", "dependencies", "semantic-roles", "coreference")

# Mixing weights of these are "close to uniform" and "spread across the entire network" (section 4).
SPREAD = ("relations", "protoroles")
