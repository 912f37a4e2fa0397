"""Explanations by name: the weight of each edge for the prediction of each node."""

from fgai.explanations.attribution import Attribution, EdgeWeights, attribution
from fgai.explanations.catalogue import EXPLANATIONS, Explanation, one_layer, resolve, sites_of
from fgai.explanations.compare import Difference, compare_nodes
from fgai.explanations.leave_one_out import class_logits, class_probs, edge_margins, value_vectors
from fgai.explanations.node import AttentionExplanation, Edge, NodeExplanation, explain_node, hetero_explanation

__all__ = [
    "EXPLANATIONS",
    "AttentionExplanation",
    "Attribution",
    "Difference",
    "Edge",
    "EdgeWeights",
    "Explanation",
    "NodeExplanation",
    "attribution",
    "class_logits",
    "class_probs",
    "compare_nodes",
    "edge_margins",
    "explain_node",
    "hetero_explanation",
    "one_layer",
    "resolve",
    "sites_of",
    "value_vectors",
]
