"""An option that would have no effect is refused in one line, before anything is read."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Work

IGNORED = (  # a command, and the two options of its message
    ("attention corpus.txt -m model --other model --layers 1", "--layers 1", "--other model"),
    ("attention corpus.txt -m model --other model --set heads=1", "--set heads=1", "--other model"),
    ("bench breakeven corpus.txt -m model --set months=3", "--set months=3", "give hour and gb_month both"),
    ("generate corpus.txt new.jsonl -m model --set seed=1", "--set seed=1", "--set temperature=T"),
    ("generate corpus.txt new.jsonl -m model --set temperature=0 --set top_p=0.5", "top_p=0.5", "--set temperature=T"),
    ("geometry s.zarr --metrics anisotropy --centered", "--centered", "--metrics anisotropy"),
    ("geometry s.zarr --metrics intrasim,anisotropy --min-contexts 2", "--min-contexts 2", "intrasim,anisotropy"),
    ("geometry s.zarr --metrics mean_norm --set baseline=sample", "--set baseline=sample", "--metrics mean_norm"),
    ("geometry s.zarr --metrics anisotropy --set resamples=9", "--set resamples=9", "--metrics anisotropy"),
    ("geometry s.zarr --metrics mev --set top=3", "--set top=3", "--metrics mev"),
    ("geometry s.zarr --set sample=50", "--set sample=50", "--set baseline=sample"),
    ("geometry s.zarr --json --set resamples=100", "--set resamples=100", "--json"),
    ("geometry s.zarr --json --plot g.svg --set top=3", "--set top=3", "--json"),
    ("index s.zarr --list --kind auto", "--kind auto", "--list"),
    ("index s.zarr --list --recall", "--recall", "--list"),
    ("index s.zarr --remove a --layer 3", "--layer 3", "--remove a"),
    ("index s.zarr --remove a --set seed=1", "--set seed=1", "--remove a"),
    ("index s.zarr --out r.csv", "--out r.csv", "--recall"),
    ("index s.zarr --set k=3", "--set k=3", "--recall"),
    ("label s.zarr --remove a --on word", "--on word", "--remove a"),
    ("label s.zarr --remove a --replace", "--replace", "--remove a"),
    ("lookup s.zarr bank --attention m", "--attention m", "--plot"),
    ("lookup s.zarr bank --size 6x4", "--size 6x4", "--plot"),
    ("lookup s.zarr bank --title A", "--title A", "--plot"),
    ("neighbors s.zarr --batch corpus.txt --row 3", "--row 3", "--batch corpus.txt"),
    ("neighbors s.zarr --row 3 --mean", "--mean", "--row 3"),
    ("neighbors s.zarr --row 3 --queries 2", "--queries 2", "--row 3"),
    ("neighbors s.zarr bank --batch corpus.txt", "--batch corpus.txt", "bank"),
    ("neighbors s.zarr bank --mean --queries 2", "--queries 2", "--mean"),
    ("neighbors s.zarr bank --model m", "--model m", "--text"),
    ("neighbors s.zarr bank --row 3", "--row 3", "bank"),
    ("neighbors s.zarr bank --text bank --queries 2", "--queries 2", "--text bank"),
    ("neighbors glove.txt bank --index a", "--index a", "the word vectors of glove.txt"),
    ("neighbors glove.txt bank --queries 2", "--queries 2", "the word vectors of glove.txt"),
    ("probe apply p s.zarr --by class --json", "--by class", "--json"),
    ("probe classes s.zarr --train a --test b --by class --json", "--by class", "--json"),
    ("probe trace s.zarr p --targets t --sentence 1 --most 2", "--most 2", "--sentence 1"),
    ("probe trace s.zarr p --targets t --set all=true", "--set all=true", "--sentence or --plot"),
    ("probe classes s.zarr --train a --test b --set hidden_size=4", "--set hidden_size=4", "--kind mlp"),
    ("probe classes s.zarr --train a --test b --set dev=c --set dev_share=0.5", "dev_share=0.5", "--set dev=c"),
    ("probe edges s.zarr corpus.txt --kind linear --set projection=4", "--set projection=4", "--kind linear"),
    ("probe mdl s.zarr corpus.txt --kind linear --set hidden_size=4", "--set hidden_size=4", "--kind linear"),
    ("probe structure s.zarr --train a --dev b --test c --sentence 1", "--sentence 1", "--plot"),
    ("senses s.zarr bank --clusters 2 --set min_size=3", "--set min_size=3", "--clusters 2"),
    ("senses s.zarr bank --set map=umap", "--set map=umap", "--plot"),
)


@pytest.mark.parametrize("case", IGNORED, ids=lambda case: case[0])
def test_an_option_without_effect_is_refused(case: tuple[str, ...], work: Work) -> None:
    work.refuses(*case)
