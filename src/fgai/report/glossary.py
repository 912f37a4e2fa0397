"""The terms of the page, each in one or two sentences."""

from __future__ import annotations

GLOSSARY = {
    "attention": "The weight that a node gives to each of its neighbours. The weights of a node sum to one.",
    "explanation": "Which edges a prediction depends on, by the weights of the attention. “tree” follows the attention "
    "through all layers, “last” takes that of the last layer.",
    "top 5": "The five edges with the largest weights for a node.",
    "attack": "A small change of the graph, chosen through the gradients of the model to harm it most.",
    "fake node": "A node that the attack adds, with links and features of the attack's choice.",
    "clean": "On the graph as it was given, before the attack.",
    "attacked": "On the graph after the attack, mean over attacks with different seeds.",
    "used": "A grade. Yes if the predictions change when the attention is replaced by equal weights, and the attention "
    "depends on the trained parameters.",
    "faithful": "A grade. Supported if deleting the most attended edges hurts predictions more than deleting random or "
    "the least attended ones.",
    "stable": "A grade. Yes if the attack changes neither the explanations nor the predictions by more than a little.",
    "F1": "Share of right predictions on the evaluated nodes (micro-F1). Higher is better.",
    "AUC": "Area under the ROC curve: how well the predictions rank the classes. Higher is better.",
    "V_5": "Share of a node's top 5 that is still in its top 5 after the attack, mean over nodes. Higher is better.",
    "TVD": "Total variation distance: half the sum of the changes of the predicted probabilities, 0 to 1.",
    "g-TVD": "Mean total variation distance between the predictions before and after the attack. Lower is better.",
    "g-JSD": "Jensen-Shannon divergence between the explanations before and after the attack. Lower is better.",
    "F+": "Share of predictions that stay right as the most attended edges are deleted. A fast fall is faithful.",
    "F-": "Share of predictions that stay right as the least attended edges are deleted. No fall is faithful.",
    "slope of F+": "Slope of F+ by the share of deleted edges. Lower, a faster fall, is better.",
    "slope of F-": "Slope of F- by the share of deleted edges. Higher, a slower fall, is better.",
    "nonuniformity": "Distance of the attention from equal weights. It describes the attention; a change under attack "
    "is neither good nor bad.",
    "entropy": "Entropy of the attention, 1 for equal weights. It describes the attention; a change under attack is "
    "neither good nor bad.",
    "certified": "Proved: no change of the attention of this size can move the top 5 of the node.",
    "radius": "The size of a change of the attention, summed over the edges of a node.",
    "attention moved": "Distance between the weights of a node before and after the attack.",
    "attacks that change it": "Number of attacks under which the model predicts another class for the node.",
    "similarity": "V_5 between the explanations of this model and of the first one, on the clean graph.",
    "closeness": "Total variation distance between the predictions of this model and of the first one, on the clean "
    "graph.",
}
METRIC_TERMS = {
    "f1": "F1",
    "auc": "AUC",
    "overlap": "V_5",
    "g_tvd": "g-TVD",
    "g_jsd": "g-JSD",
    "f_slope_plus": "slope of F+",
    "f_slope_minus": "slope of F-",
    "nonuniformity": "nonuniformity",
    "entropy": "entropy",
}  # the term of each metric on the page
DESCRIBING = ("nonuniformity", "entropy")  # metrics that an attack makes neither better nor worse
