import xml.etree.ElementTree as xml

import pytest
import torch
from torch_geometric.data import Data

from fgai import plots
from fgai.errors import DataError
from fgai.plots.molecules import ADDED, BOND, KNOWN, WEIGHT, WIDEST

ELEMENTS = ("C", "O", "N", "H")
SVG = "{http://www.w3.org/2000/svg}"


def molecule(atoms, bonds):
    """A molecule from the letters of its atoms and its bonds (atom, atom, order)."""
    ends = [pair for a, b, _ in bonds for pair in ((a, b), (b, a))]
    orders = [order - 1 for *_, order in bonds for _ in range(2)]
    x = torch.eye(len(ELEMENTS))[[ELEMENTS.index(atom) for atom in atoms]]
    return Data(x=x, edge_index=torch.tensor(ends).T, edge_attr=torch.eye(3)[orders])


ACID = molecule("COOH", [(0, 1, 2), (0, 2, 1), (2, 3, 1)])


def drawn(text):
    root = xml.fromstring(text)
    lines = [line.attrib for line in root.iter(f"{SVG}line")]
    words = [word.text for word in root.iter(f"{SVG}text")]
    return lines, words, list(root.iter(f"{SVG}g"))


def test_atoms_are_named_bonds_are_lines_and_the_largest_weight_is_widest():
    weight = torch.tensor([0.1, 0.4, 0.2, 0.0, 0.0, 0.0])
    lines, words, _ = drawn(plots.molecules({"acid": (ACID, weight)}, ELEMENTS))
    assert [word for word in words if word in ELEMENTS] == ["C", "O", "O", "H"]
    widths = [float(line["stroke-width"]) for line in lines if line["stroke"] == WEIGHT][:6]
    assert widths == [pytest.approx(WIDEST * value / 0.4) for value in weight.tolist()]
    assert sum(line["stroke"] == BOND for line in lines) == 4, "a double bond and two single ones"


def test_places_are_those_of_the_first_molecule_and_added_atoms_are_marked():
    attacked = molecule("COOHN", [(0, 1, 2), (0, 2, 1), (2, 3, 1), (4, 0, 1)])
    known = torch.tensor([True, True, False, False, False, False])
    panels = {"before": (ACID, torch.ones(6)), "after": (attacked, torch.ones(8))}
    lines, words, groups = drawn(plots.molecules(panels, ELEMENTS, known))
    first, second = ([mark.attrib for mark in group.iter(f"{SVG}circle")] for group in groups)
    assert first == second[:4] and len(second) == 5 and second[4]["stroke"] == ADDED
    assert sum(line["stroke"] == KNOWN for line in lines) == 2 * 2 + 1, "two lines of a double bond twice, and the key"
    assert sum(line["stroke"] == ADDED for line in lines) == 2 and {"known reason", "added by the attack"} <= {*words}


def test_a_title_is_text_and_wrong_weights_are_refused_in_words():
    assert "<b>" not in plots.molecules({"<b>": (ACID, torch.ones(6))}, ELEMENTS)
    with pytest.raises(DataError, match=r"'acid' has 6 edges and weights \[3\]"):
        plots.molecules({"acid": (ACID, torch.ones(3))}, ELEMENTS)
    with pytest.raises(DataError, match="no molecule to draw"):
        plots.molecules({}, ELEMENTS)
