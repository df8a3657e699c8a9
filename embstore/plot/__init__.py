"""Figures of results; the only part that draws."""

from embstore.plot.curves import geometry_figure as geometry_figure
from embstore.plot.curves import probe_scores as probe_scores
from embstore.plot.curves import recall_curve as recall_curve
from embstore.plot.drawing import MARKERS as MARKERS
from embstore.plot.drawing import PALETTE as PALETTE
from embstore.plot.drawing import SUFFIXES as SUFFIXES
from embstore.plot.drawing import pyplot as pyplot
from embstore.plot.drawing import save as save
from embstore.plot.edges import edge_layers as edge_layers
from embstore.plot.edges import edge_summary as edge_summary
from embstore.plot.edges import mixing_layers as mixing_layers
from embstore.plot.maps import attention_heatmap as attention_heatmap
from embstore.plot.maps import cka_map as cka_map
from embstore.plot.maps import cluster_map as cluster_map
from embstore.plot.maps import heat_map as heat_map
from embstore.plot.maps import principal_plane as principal_plane
from embstore.plot.maps import sense_map as sense_map
from embstore.plot.mdl import code_lengths as code_lengths
from embstore.plot.traces import trace_figure as trace_figure
from embstore.plot.trees import structure_figure as structure_figure
from embstore.plot.trees import tree_figure as tree_figure
