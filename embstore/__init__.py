"""embstore: extract the hidden states of a language model once, ask anything of them after.

The public names load their modules on first use, so that `import embstore` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embstore import plot as plot
    from embstore.analysis.bench import bench_neighbors as bench_neighbors
    from embstore.analysis.bench import bench_query as bench_query
    from embstore.analysis.geometry.cka import linear_cka as linear_cka
    from embstore.analysis.geometry.measure import geometry as geometry
    from embstore.analysis.geometry.separability import sense_separability as sense_separability
    from embstore.analysis.geometry.spectra import maximum_explainable_variance as maximum_explainable_variance
    from embstore.analysis.geometry.summary import extreme_words as extreme_words
    from embstore.analysis.geometry.summary import summarize_geometry as summarize_geometry
    from embstore.analysis.neighbors.clusters import cluster_occurrences as cluster_occurrences
    from embstore.analysis.neighbors.hubness import hubness as hubness
    from embstore.analysis.neighbors.indexes import build_index as build_index
    from embstore.analysis.neighbors.indexes import open_index as open_index
    from embstore.analysis.neighbors.labels import knn_labels as knn_labels
    from embstore.analysis.neighbors.labels import knn_predictions as knn_predictions
    from embstore.analysis.neighbors.nearest import neighbors as neighbors
    from embstore.analysis.neighbors.recall import measure_recall as measure_recall
    from embstore.analysis.neighbors.senses import cosine_neighbors as cosine_neighbors
    from embstore.analysis.neighbors.senses import label_agreement as label_agreement
    from embstore.analysis.neighbors.senses import labelled_occurrences as labelled_occurrences
    from embstore.analysis.scan import Batch as Batch
    from embstore.analysis.scan import Reducer as Reducer
    from embstore.analysis.scan import Reduction as Reduction
    from embstore.analysis.scan import Scope as Scope
    from embstore.analysis.scan import reduce as reduce
    from embstore.analysis.similarity.sentence import SentenceSimilarity as SentenceSimilarity
    from embstore.analysis.similarity.sentence import sentence_similarity as sentence_similarity
    from embstore.analysis.static.files import write_static_store as write_static_store
    from embstore.analysis.static.vectors import all_but_the_top as all_but_the_top
    from embstore.analysis.static.vectors import static_vectors as static_vectors
    from embstore.analysis.torch_dataset import TorchDataset as TorchDataset
    from embstore.analysis.words import distinct_contexts as distinct_contexts
    from embstore.analysis.words import eligible_types as eligible_types
    from embstore.cluster.processes import Processes as Processes
    from embstore.cluster.ray import RayExecutor as RayExecutor
    from embstore.corpus import Keep as Keep
    from embstore.corpus import Sentence as Sentence
    from embstore.corpus import open_corpus as open_corpus
    from embstore.corpus import read_word_classes as read_word_classes
    from embstore.corpus.trees import read_trees as read_trees
    from embstore.errors import EmbstoreError as EmbstoreError
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
    from embstore.models.finetune import finetune as finetune
    from embstore.models.static.loading import word_vector_encoder as word_vector_encoder
    from embstore.models.static.subword_table import subword_table_vectors as subword_table_vectors
    from embstore.models.transformer.attention_maps import attention_similarity as attention_similarity
    from embstore.probes.classes.classes import ProbeResult as ProbeResult
    from embstore.probes.classes.classes import apply_probes as apply_probes
    from embstore.probes.classes.classes import probe_classes as probe_classes
    from embstore.probes.classes.files import SavedBank as SavedBank
    from embstore.probes.edges.edges import probe_edges as probe_edges
    from embstore.probes.edges.files import EdgeProbes as EdgeProbes
    from embstore.probes.edges.traces import ambiguous_sentences as ambiguous_sentences
    from embstore.probes.edges.traces import trace_edges as trace_edges
    from embstore.probes.mdl import probe_mdl as probe_mdl
    from embstore.probes.structure.structure import probe_structure as probe_structure
    from embstore.store import Selection as Selection
    from embstore.store import Store as Store
    from embstore.store import export as export
    from embstore.store import import_hdf5 as import_hdf5
    from embstore.store import open_store
    from embstore.store import verify as verify
    from embstore.studies.tenney2019.study import tenney2019 as tenney2019
    from embstore.studies.zhao2020.study import zhao2020 as zhao2020
    from embstore.vectors import WordVectors as WordVectors
    from embstore.vectors import read_word_vectors as read_word_vectors
    from embstore.vectors import write_word_vectors as write_word_vectors
    from embstore.vectors.evaluation import evaluate as evaluate
    from embstore.vectors.evaluation import table1 as table1
    from embstore.vectors.training import train_vectors as train_vectors

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
    "evaluate": ("embstore.vectors.evaluation", "evaluate"),
    "table1": ("embstore.vectors.evaluation", "table1"),
    "bench_extract": ("embstore.extraction.bench", "bench_extract"),
    "Progress": ("embstore.extraction.pipeline", "Progress"),
    "Timings": ("embstore.extraction.pipeline", "Timings"),
    "extract": ("embstore.extraction.pipeline", "extract"),
    "Plan": ("embstore.extraction.plan", "Plan"),
    "plan": ("embstore.extraction.plan", "plan"),
    "load_encoder": ("embstore.models", "load_encoder"),
    "subword_table_vectors": ("embstore.models.static.subword_table", "subword_table_vectors"),
    "cluster_occurrences": ("embstore.analysis.neighbors.clusters", "cluster_occurrences"),
    "hubness": ("embstore.analysis.neighbors.hubness", "hubness"),
    "build_index": ("embstore.analysis.neighbors.indexes", "build_index"),
    "open_index": ("embstore.analysis.neighbors.indexes", "open_index"),
    "knn_labels": ("embstore.analysis.neighbors.labels", "knn_labels"),
    "knn_predictions": ("embstore.analysis.neighbors.labels", "knn_predictions"),
    "measure_recall": ("embstore.analysis.neighbors.recall", "measure_recall"),
    "neighbors": ("embstore.analysis.neighbors.nearest", "neighbors"),
    "Batch": ("embstore.analysis.scan", "Batch"),
    "Reducer": ("embstore.analysis.scan", "Reducer"),
    "Reduction": ("embstore.analysis.scan", "Reduction"),
    "Scope": ("embstore.analysis.scan", "Scope"),
    "reduce": ("embstore.analysis.scan", "reduce"),
    "linear_cka": ("embstore.analysis.geometry.cka", "linear_cka"),
    "sense_separability": ("embstore.analysis.geometry.separability", "sense_separability"),
    "SentenceSimilarity": ("embstore.analysis.similarity.sentence", "SentenceSimilarity"),
    "sentence_similarity": ("embstore.analysis.similarity.sentence", "sentence_similarity"),
    "geometry": ("embstore.analysis.geometry.measure", "geometry"),
    "summarize_geometry": ("embstore.analysis.geometry.summary", "summarize_geometry"),
    "extreme_words": ("embstore.analysis.geometry.summary", "extreme_words"),
    "maximum_explainable_variance": ("embstore.analysis.geometry.spectra", "maximum_explainable_variance"),
    "static_vectors": ("embstore.analysis.static.vectors", "static_vectors"),
    "all_but_the_top": ("embstore.analysis.static.vectors", "all_but_the_top"),
    "write_static_store": ("embstore.analysis.static.files", "write_static_store"),
    "distinct_contexts": ("embstore.analysis.words", "distinct_contexts"),
    "eligible_types": ("embstore.analysis.words", "eligible_types"),
    "TorchDataset": ("embstore.analysis.torch_dataset", "TorchDataset"),
    "bench_neighbors": ("embstore.analysis.bench", "bench_neighbors"),
    "bench_query": ("embstore.analysis.bench", "bench_query"),
    "cosine_neighbors": ("embstore.analysis.neighbors.senses", "cosine_neighbors"),
    "label_agreement": ("embstore.analysis.neighbors.senses", "label_agreement"),
    "labelled_occurrences": ("embstore.analysis.neighbors.senses", "labelled_occurrences"),
    "tenney2019": ("embstore.studies.tenney2019.study", "tenney2019"),
    "zhao2020": ("embstore.studies.zhao2020.study", "zhao2020"),
    "ProbeResult": ("embstore.probes.classes.classes", "ProbeResult"),
    "apply_probes": ("embstore.probes.classes.classes", "apply_probes"),
    "EdgeProbes": ("embstore.probes.edges.files", "EdgeProbes"),
    "ambiguous_sentences": ("embstore.probes.edges.traces", "ambiguous_sentences"),
    "probe_edges": ("embstore.probes.edges.edges", "probe_edges"),
    "probe_mdl": ("embstore.probes.mdl", "probe_mdl"),
    "trace_edges": ("embstore.probes.edges.traces", "trace_edges"),
    "probe_structure": ("embstore.probes.structure.structure", "probe_structure"),
    "read_trees": ("embstore.corpus.trees", "read_trees"),
    "probe_classes": ("embstore.probes.classes.classes", "probe_classes"),
    "SavedBank": ("embstore.probes.classes.files", "SavedBank"),
    "finetune": ("embstore.models.finetune", "finetune"),
    "attention_similarity": ("embstore.models.transformer.attention_maps", "attention_similarity"),
    "extract_windows": ("embstore.extraction.sweep", "extract_windows"),
    "plan_windows": ("embstore.extraction.sweep", "plan_windows"),
    "train_vectors": ("embstore.vectors.training", "train_vectors"),
    "read_word_classes": ("embstore.corpus", "read_word_classes"),
    "word_vector_encoder": ("embstore.models.static.loading", "word_vector_encoder"),
    "Selection": ("embstore.store", "Selection"),
    "Store": ("embstore.store", "Store"),
    "export": ("embstore.store", "export"),
    "import_hdf5": ("embstore.store", "import_hdf5"),
    "open": ("embstore.store", "open_store"),
    "verify": ("embstore.store", "verify"),
    "WordVectors": ("embstore.vectors", "WordVectors"),
    "read_word_vectors": ("embstore.vectors", "read_word_vectors"),
    "write_word_vectors": ("embstore.vectors", "write_word_vectors"),
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
