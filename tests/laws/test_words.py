"""Words that the code and the docs do not use: names that only their author understands, and prose that stumbles."""

import ast
import re
from pathlib import Path

import pytest

import fgai

ROOT = Path(__file__).parents[2]
SOURCES = sorted(Path(fgai.__file__).parent.rglob("*.py"))
SCRIPTS = [path for folder in ("benchmarks", "examples") for path in sorted((ROOT / folder).glob("*.py"))]
TESTS = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path.name != Path(__file__).name]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
PAGES += [path for folder in ("docs", "paper") for path in sorted((ROOT / folder).rglob("*.md"))]
EVERYWHERE = [*SOURCES, *SCRIPTS, *TESTS, *PAGES]

# old name -> what the field calls it
NAMES = {
    "calm": "clean",
    "hit": "attacked",
    "hearing": "linkable_nodes",
    "AtHand": "",
    "lost_lead": "attacked_margin",
    "lost_margin": "certified_margin",
    "still": "frozen_params",
    "evaluating": "eval_mode",
    "by_name": "call_by_signature",
    "of_first": "head",
    "Catch": "Recording",
    "seen_as": "swapped_class",
    "rebound": "with_globals",
    "layers_that_exchange": "message_passing_layers",
    "plus_weight": "weight_delta",
    "plus_score": "score_delta",
    "Followed": "EdgeLookup",
    "rising": "stable_sort",
    "need": "require",
    "sum_by": "segment_sum",
    "max_by": "segment_max",
    "whole": "atomic_write",
    "import_here": "import_from_cwd",
    "thinned": "fast_dropout",
    "Narrow": "EdgeSubset",
    "Stay": "Cached",
    "RowByRow": "incremental",
    "forget": "clear",
    "Place": "InjectionSite",
    "slopes_of": "gradients",
    "Attacked": "AttackResult",
    "climbing": "surrogates",
    "paces": "schedules",
    "two_columns": "binary_logits",
    "NoSlopeError": "NotDifferentiableError",
    "fresh": "restart_every",
    "turns": "alternate",
    "likeness": "similarity_metric",
    "refines": "needs_pretrained",
    "Figure": "Estimate",
    "Moved": "NodeShift",
    "Looks": "AttentionIndex",
    "fate": "status",
    "judged": "eval_mask",
    "Reach": "PredictionBound",
    "Composed": "IntervalBound",
    "quota": "effective_k",
    "Seen": "BatchReading",
    "Shares": "ShardedBatches",
    "drawn": "sample_edges",
    "shelf": "model_dir",
    "stacked": "append_rows",
    "restacked": "replace_rows",
    "ending": "checked_suffix",
    "finite": "jsonable",
    "world": "world_size",
    "summed": "all_reduce",
    "summed_scores": "gat_scores",
    "weighed_scores": "gatv2_scores",
    "WORKS": "ROWWISE_OPS",
    "as_pyg": "exact",
    "PAYS_FROM": "MIN_EDGES",
    "wide": "augmented",
    "seen": "on_step",
    "Strongest": "AttackEnsemble",
    "Part": "Batch",
    "slot": "position",
    "Opponent": "WarmStart",
    "meet": "attack",
    "Whole": "FullGraph",
    "purified": "defences",
    "under": "attacked",
    "floor": "baselines",
    "watch": "nodes",
    "answers": "predictions",
    "Number": "Condition",
    "judging": "audit",
    "joined": "concat",
    "using": "--import",
    "forgetting": "",
    # not as identifiers of any kind
    "found": "",
    "told": "",
    "said": "",
    "kept": "",
    "look": "",
    "some": "",
    "every": "",
    "here": "",
}

# In scripts, these are words of the trade: benchmarks ask models for answers, and watch memory.
ORDINARY = {"answers", "watch", "finite"}

PHRASES = (
    "stands at the softmax",
    "hear of their neighbours",
    "asked of one attention after another",
    "nothing changed\\b.*\\bvery tensor",
    "do not come again",
    "makes only those again",
    "can judge but not be climbed",
    "does not chase",
    "take turns in leading",
    "will be looked at",
    "that learn together",
    "without more ado",
    "1 means the same on",
    "what was asked of FGAI and is not reached",
    "judged are the nodes",
    "\\b(hear|hears|heard) of\\b",
)


def identifiers(tree):
    """Every name that the code defines: functions, classes, parameters, fields and variables, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT / "src").as_posix())
def test_no_banned_name_is_defined(path):
    wrong = [(name, line) for name, line in identifiers(ast.parse(path.read_text())) if name.lstrip("_") in NAMES]
    assert not wrong, [
        f"{path.name}:{line} {name} -> {NAMES[name.lstrip('_')] or 'say what it is'}" for name, line in wrong
    ]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_banned_name_is_defined_in_a_script(path):
    wrong = [(name, line) for name, line in identifiers(ast.parse(path.read_text())) if name.lstrip("_") in NAMES]
    assert not [(name, line) for name, line in wrong if name.lstrip("_") not in ORDINARY], wrong


@pytest.mark.parametrize(
    "path", [*SOURCES, *SCRIPTS, *TESTS, *PAGES], ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_no_banned_phrase_is_left(path):
    text = re.sub(r"\s+", " ", path.read_text())
    assert not [phrase for phrase in PHRASES if re.search(phrase, text, re.I)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_prose_is_wrapped(path):
    fenced = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
    long = [
        line for line in fenced.splitlines() if len(line) > 120 and not line.lstrip().startswith(("|", "<", "!", "["))
    ]
    assert not long, long[:3]
