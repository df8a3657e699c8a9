"""embstore: extract the hidden states of a language model once, ask anything of them after.

The public names load their modules on first use, so that `import embstore` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embstore import plot as plot
    from embstore.cluster.processes import Processes as Processes
    from embstore.cluster.ray import RayExecutor as RayExecutor
    from embstore.corpus import Keep as Keep
    from embstore.corpus import Sentence as Sentence
    from embstore.corpus import open_corpus as open_corpus
    from embstore.corpus import read_word_classes as read_word_classes
    from embstore.corpus.trees import read_trees as read_trees
    from embstore.errors import EmbstoreError as EmbstoreError
    from embstore.evaluation import evaluate as evaluate
    from embstore.evaluation import table1 as table1
    from embstore.executor import Executor as Executor
    from embstore.executor import InProcess as InProcess
    from embstore.extraction.bench import bench_extract as bench_extract
    from embstore.extraction.pipeline import Progress as Progress
    from embstore.extraction.pipeline import Timings as Timings
    from embstore.extraction.pipeline import extract as extract
    from embstore.extraction.plan import Plan as Plan
    from embstore.extraction.plan import plan as plan
    from embstore.extraction.sweep import extract_windows as extract_windows
    from embstore.extraction.sweep import plan_windows as plan_windows
    from embstore.models import load_encoder as load_encoder
    from embstore.models.attention_maps import attention_similarity as attention_similarity
    from embstore.models.finetune import finetune as finetune
    from embstore.models.static_loading import word_vector_encoder as word_vector_encoder
    from embstore.models.subword_table import subword_table_vectors as subword_table_vectors
    from embstore.nearest import neighbors as neighbors
    from embstore.probe.bank_files import SavedBank as SavedBank
    from embstore.probe.classes import ProbeResult as ProbeResult
    from embstore.probe.classes import apply_probes as apply_probes
    from embstore.probe.classes import probe_classes as probe_classes
    from embstore.probe.edge_files import EdgeProbes as EdgeProbes
    from embstore.probe.edges import probe_edges as probe_edges
    from embstore.probe.mdl import probe_mdl as probe_mdl
    from embstore.probe.structure import probe_structure as probe_structure
    from embstore.probe.traces import ambiguous_sentences as ambiguous_sentences
    from embstore.probe.traces import trace_edges as trace_edges
    from embstore.query.bench import bench_neighbors as bench_neighbors
    from embstore.query.bench import bench_query as bench_query
    from embstore.query.cka import linear_cka as linear_cka
    from embstore.query.clusters import cluster_occurrences as cluster_occurrences
    from embstore.query.geometry import geometry as geometry
    from embstore.query.hubness import hubness as hubness
    from embstore.query.indexes import build_index as build_index
    from embstore.query.indexes import open_index as open_index
    from embstore.query.labelling import knn_labels as knn_labels
    from embstore.query.labelling import knn_predictions as knn_predictions
    from embstore.query.recall import measure_recall as measure_recall
    from embstore.query.scan import Batch as Batch
    from embstore.query.scan import Reducer as Reducer
    from embstore.query.scan import Reduction as Reduction
    from embstore.query.scan import Scope as Scope
    from embstore.query.scan import reduce as reduce
    from embstore.query.senses import cosine_neighbors as cosine_neighbors
    from embstore.query.senses import label_agreement as label_agreement
    from embstore.query.senses import labelled_occurrences as labelled_occurrences
    from embstore.query.sentence import SentenceSimilarity as SentenceSimilarity
    from embstore.query.sentence import sentence_similarity as sentence_similarity
    from embstore.query.separability import sense_separability as sense_separability
    from embstore.query.spectra import maximum_explainable_variance as maximum_explainable_variance
    from embstore.query.static import all_but_the_top as all_but_the_top
    from embstore.query.static import static_vectors as static_vectors
    from embstore.query.static_files import write_static_store as write_static_store
    from embstore.query.summary import extreme_words as extreme_words
    from embstore.query.summary import summarize_geometry as summarize_geometry
    from embstore.query.torch_dataset import TorchDataset as TorchDataset
    from embstore.query.words import distinct_contexts as distinct_contexts
    from embstore.query.words import eligible_types as eligible_types
    from embstore.recipes.tenney2019 import tenney2019 as tenney2019
    from embstore.recipes.zhao2020 import zhao2020 as zhao2020
    from embstore.store import Selection as Selection
    from embstore.store import Store as Store
    from embstore.store import export as export
    from embstore.store import import_hdf5 as import_hdf5
    from embstore.store import open_store
    from embstore.store import verify as verify
    from embstore.wordvectors import WordVectors as WordVectors
    from embstore.wordvectors import read_word_vectors as read_word_vectors
    from embstore.wordvectors import write_word_vectors as write_word_vectors
    from embstore.wordvectors.training import train_vectors as train_vectors

    open = open_store

__version__ = "0.1.0"

_HOME = {
    "Sentence": ("embstore.corpus", "Sentence"),
    "open_corpus": ("embstore.corpus", "open_corpus"),
    "Keep": ("embstore.corpus", "Keep"),
    "EmbstoreError": ("embstore.errors", "EmbstoreError"),
    "Executor": ("embstore.executor", "Executor"),
    "InProcess": ("embstore.executor", "InProcess"),
    "Processes": ("embstore.cluster.processes", "Processes"),
    "RayExecutor": ("embstore.cluster.ray", "RayExecutor"),
    "evaluate": ("embstore.evaluation", "evaluate"),
    "table1": ("embstore.evaluation", "table1"),
    "bench_extract": ("embstore.extraction.bench", "bench_extract"),
    "Progress": ("embstore.extraction.pipeline", "Progress"),
    "Timings": ("embstore.extraction.pipeline", "Timings"),
    "extract": ("embstore.extraction.pipeline", "extract"),
    "Plan": ("embstore.extraction.plan", "Plan"),
    "plan": ("embstore.extraction.plan", "plan"),
    "load_encoder": ("embstore.models", "load_encoder"),
    "subword_table_vectors": ("embstore.models.subword_table", "subword_table_vectors"),
    "cluster_occurrences": ("embstore.query.clusters", "cluster_occurrences"),
    "hubness": ("embstore.query.hubness", "hubness"),
    "build_index": ("embstore.query.indexes", "build_index"),
    "open_index": ("embstore.query.indexes", "open_index"),
    "knn_labels": ("embstore.query.labelling", "knn_labels"),
    "knn_predictions": ("embstore.query.labelling", "knn_predictions"),
    "measure_recall": ("embstore.query.recall", "measure_recall"),
    "neighbors": ("embstore.nearest", "neighbors"),
    "Batch": ("embstore.query.scan", "Batch"),
    "Reducer": ("embstore.query.scan", "Reducer"),
    "Reduction": ("embstore.query.scan", "Reduction"),
    "Scope": ("embstore.query.scan", "Scope"),
    "reduce": ("embstore.query.scan", "reduce"),
    "linear_cka": ("embstore.query.cka", "linear_cka"),
    "sense_separability": ("embstore.query.separability", "sense_separability"),
    "SentenceSimilarity": ("embstore.query.sentence", "SentenceSimilarity"),
    "sentence_similarity": ("embstore.query.sentence", "sentence_similarity"),
    "geometry": ("embstore.query.geometry", "geometry"),
    "summarize_geometry": ("embstore.query.summary", "summarize_geometry"),
    "extreme_words": ("embstore.query.summary", "extreme_words"),
    "maximum_explainable_variance": ("embstore.query.spectra", "maximum_explainable_variance"),
    "static_vectors": ("embstore.query.static", "static_vectors"),
    "all_but_the_top": ("embstore.query.static", "all_but_the_top"),
    "write_static_store": ("embstore.query.static_files", "write_static_store"),
    "distinct_contexts": ("embstore.query.words", "distinct_contexts"),
    "eligible_types": ("embstore.query.words", "eligible_types"),
    "TorchDataset": ("embstore.query.torch_dataset", "TorchDataset"),
    "bench_neighbors": ("embstore.query.bench", "bench_neighbors"),
    "bench_query": ("embstore.query.bench", "bench_query"),
    "cosine_neighbors": ("embstore.query.senses", "cosine_neighbors"),
    "label_agreement": ("embstore.query.senses", "label_agreement"),
    "labelled_occurrences": ("embstore.query.senses", "labelled_occurrences"),
    "tenney2019": ("embstore.recipes.tenney2019", "tenney2019"),
    "zhao2020": ("embstore.recipes.zhao2020", "zhao2020"),
    "ProbeResult": ("embstore.probe.classes", "ProbeResult"),
    "apply_probes": ("embstore.probe.classes", "apply_probes"),
    "EdgeProbes": ("embstore.probe.edge_files", "EdgeProbes"),
    "ambiguous_sentences": ("embstore.probe.traces", "ambiguous_sentences"),
    "probe_edges": ("embstore.probe.edges", "probe_edges"),
    "probe_mdl": ("embstore.probe.mdl", "probe_mdl"),
    "trace_edges": ("embstore.probe.traces", "trace_edges"),
    "probe_structure": ("embstore.probe.structure", "probe_structure"),
    "read_trees": ("embstore.corpus.trees", "read_trees"),
    "probe_classes": ("embstore.probe.classes", "probe_classes"),
    "SavedBank": ("embstore.probe.bank_files", "SavedBank"),
    "finetune": ("embstore.models.finetune", "finetune"),
    "attention_similarity": ("embstore.models.attention_maps", "attention_similarity"),
    "extract_windows": ("embstore.extraction.sweep", "extract_windows"),
    "plan_windows": ("embstore.extraction.sweep", "plan_windows"),
    "train_vectors": ("embstore.wordvectors.training", "train_vectors"),
    "read_word_classes": ("embstore.corpus", "read_word_classes"),
    "word_vector_encoder": ("embstore.models.static_loading", "word_vector_encoder"),
    "Selection": ("embstore.store", "Selection"),
    "Store": ("embstore.store", "Store"),
    "export": ("embstore.store", "export"),
    "import_hdf5": ("embstore.store", "import_hdf5"),
    "open": ("embstore.store", "open_store"),
    "verify": ("embstore.store", "verify"),
    "WordVectors": ("embstore.wordvectors", "WordVectors"),
    "read_word_vectors": ("embstore.wordvectors", "read_word_vectors"),
    "write_word_vectors": ("embstore.wordvectors", "write_word_vectors"),
}

__all__ = [*_HOME, "__version__", "plot"]


def __getattr__(name: str) -> Any:
    if name == "plot":
        return import_module("embstore.plot")
    if name not in _HOME:
        raise AttributeError(f"module 'embstore' has no attribute {name!r}")
    module, attribute = _HOME[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
