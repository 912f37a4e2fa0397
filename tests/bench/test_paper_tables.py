"""The paper's values in our plans are those of its LaTeX source, table by table, where the source is at hand."""

import re

import pytest

from fgai.bench.plan import Plan

NAMES = {
    "Vanilla": "vanilla",
    "LN": "ln",
    "AT": "at",
    "FGAI": "fgai",
    "GAT": "gat",
    "GATv2": "gatv2",
    "GT": "gt",
    "GAT+LN": "ln",
    "GAT+AT": "at",
    "GAT+FGAI": "fgai",
    "GNN-SVD": "gnn-svd",
    "GNNGuard": "gnnguard",
}
DATASETS = ("amazon-photo", "amazon-computers", "coauthor-cs", "coauthor-physics")
TERMS: dict[tuple[int, ...], str] = {  # L1 is similarity, L2 prediction, L3 explanation
    (1, 1, 1): "fgai",
    (0, 1, 1): "fgai:without-similarity",
    (1, 0, 1): "fgai:without-prediction",
    (1, 1, 0): "fgai:without-explanation",
    (0, 0, 1): "fgai:only-explanation",
    (0, 1, 0): "fgai:only-prediction",
    (1, 0, 0): "fgai:only-similarity",
}


@pytest.fixture(scope="module", name="tables")
def _tables(shelf):
    """Each table of the source by its label: rows of raw cells, each row with the model that it stands under."""
    path = shelf.parent / "paper" / "fgai-paper.tex"
    if not path.exists():
        pytest.skip("no source of the paper")
    found = {}
    for part in re.findall(r"\\begin\{table\*?\}(.*?)\\end\{table\*?\}", path.read_text(), re.S):
        label = re.search(r"\\label\{([^}]+)\}", part)[1]
        model, rows = "", []
        for line in re.split(r"\\\\", part):
            model = (re.findall(r"\\multirow\{\d\}\{\*\}\{\\textbf\{(\w+)\}", line) or [model])[-1]
            cells = [
                cell.strip() for cell in re.sub(r"\\\w*rule(\(.*?\))?(\{.*?\})?|\\rowcolor\S*", "", line).split("&")
            ]
            rows.append((NAMES.get(model, model), [plain(cell) for cell in cells]))
        found[label] = rows
    return found


def plain(cell):
    """A cell without LaTeX; a deviation is left out, and an underlined number is marked."""
    cell = re.sub(r"\\multirow\{\d\}\{\*\}\{\\textbf\{\w+\}\}|\\\(\\pm[\d.]+\\\)", "", cell)
    cell = re.sub(r"\\underline\{(.*?)\}", r"_\1", re.sub(r"\\textbf\{(.*?)\}", r"\1", cell))
    return cell.strip()


def numbers(cells):
    return [float(cell) for cell in cells]


@pytest.mark.parametrize(("name", "label"), [("table1", "tab:1"), ("table2", "tab:2")])
def test_tables_1_and_2(tables, name, label):
    paper, compared = Plan.read(name).paper, 0
    for model, (_, method, *cells) in [row for row in tables[label] if len(row[1]) == 12 and row[1][1] in NAMES]:
        for place, dataset in enumerate(DATASETS):
            assert paper[model][NAMES[method]][dataset] == numbers(cells[2 * place : 2 * place + 2])
            compared += 1
    assert compared == 48


def test_the_table_of_links(tables):
    paper, compared = Plan.read("links").paper, 0
    for model, (_, method, *cells) in [
        row for row in tables["tab:result_link"] if len(row[1]) == 14 and row[1][1] in NAMES
    ]:
        for place, dataset in enumerate(("cora-links", "pubmed-links", "citeseer-links")):
            own = paper[f"{model}-links"][{"FGAI": "fgai:links"}.get(method, "vanilla")][dataset]
            assert own == numbers(cells[4 * place : 4 * place + 4])
            compared += 1
    assert compared == 12


def test_the_table_of_fidelity(tables):
    paper, compared = Plan.read("fidelity").paper, 0

    def signed(cell):
        return float(cell[1:]) if cell.startswith("_") else -float(cell)

    for model, (_, method, *cells) in [
        row for row in tables["tab:fidelity"] if len(row[1]) == 18 and row[1][1] in NAMES
    ]:
        for place, dataset in enumerate(DATASETS):
            minus, plus = map(signed, cells[2 * place : 2 * place + 2])
            minus_after, plus_after = map(signed, cells[8 + 2 * place : 10 + 2 * place])
            assert paper[model][NAMES[method]][dataset] == [plus, minus, plus_after, minus_after]
            compared += 1
    assert compared == 48


def test_the_ablation(tables):
    paper, compared = Plan.read("ablation").paper, 0
    for model, (_, *marks, jsd, tvd, f1, after) in [
        row for row in tables["ablation1"] if re.match(r"[\d.]+E-", "".join(row[1][4:5]))
    ]:
        terms = tuple(int("rightt" in mark) for mark in marks)
        assert paper[model][TERMS[terms]]["amazon-photo"] == numbers([jsd, tvd, f1, after])
        compared += 1
    assert compared == 21


def test_the_costs(tables):
    paper, compared = Plan.read("cost").paper["gat"], 0

    def seconds(text):
        return float(text.removesuffix("min")) * 60 if text.endswith("min") else float(text.removesuffix("s"))

    for _, (method, *cells) in [row for row in tables["cost_comp"] if row[1][0] in NAMES]:
        for place, dataset in enumerate(("amazon-photo", "coauthor-physics")):
            time, memory = cells[2 * place : 2 * place + 2]
            name = "vanilla" if method == "GAT" else NAMES[method]
            assert paper[name][dataset] == [seconds(time), float(memory.removesuffix("MiB"))]
            compared += 1
    assert compared == 12
