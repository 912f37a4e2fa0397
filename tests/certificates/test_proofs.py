"""Proofs about a model as it is: deletions, injections, the order of the top k, clones; by enumeration and attack."""

import json
from dataclasses import replace
from itertools import combinations, product

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv
from torch_geometric.utils import erdos_renyi_graph

from fgai import AttentionBall, backbones, datasets, read
from fgai.attention import Attention
from fgai.certificates import (
    Certificate,
    Deletions,
    Features,
    Injection,
    Links,
    Proof,
    Voted,
    certify,
    cloned_overlap,
    cloned_weight,
    ordered_overlap,
)
from fgai.certificates.chain import NoBoundError, parse_chain
from fgai.certificates.deletions import certified_under_deletions
from fgai.certificates.features import mean_bounds
from fgai.certificates.injections import StateBounds, injected_states, two_layers
from fgai.errors import DataError, SettingError
from fgai.explanations import value_vectors
from fgai.graph import add_nodes
from fgai.methods import Vanilla
from fgai.metrics import top_overlap
from fgai.reading import Reader
from injecting import Two, cases, graph, injected, neighbours
from loose import loose


def without(data, node, gone):
    source, target = data.edge_index
    cut = ((target == node) & torch.isin(source, gone)) | ((source == node) & torch.isin(target, gone))
    return Data(x=data.x, edge_index=data.edge_index[:, ~cut])


def falls(model, data, node, links):
    """Whether some deletion of `links` links of the node, or fewer, changes its class."""
    own = model(data.x, data.edge_index)[node].argmax()
    beside = neighbours(data, node)
    for count in range(1, links + 1):
        for gone in combinations(beside.tolist(), min(count, len(beside))):
            now = without(data, node, torch.tensor(gone, dtype=torch.long))
            if model(now.x, now.edge_index)[node].argmax() != own:
                return True
    return False


@pytest.mark.parametrize("layer", [GATConv, GATv2Conv])
@pytest.mark.parametrize("loops", [True, False])
@torch.no_grad()
def test_no_one_or_two_deleted_links_change_a_certified_class(layer, loops):
    torch.manual_seed(0)
    certified = fell = 0
    for _ in range(6):
        model, data = Two(layer, add_self_loops=loops).eval(), graph()
        budget = certify(model, data, against=Deletions(2)).budget
        for node in range(len(data.x)):
            for links in (1, 2):
                broken = falls(model, data, node, links)
                assert not (broken and budget[node] >= links), (node, links)
                certified, fell = certified + int(budget[node] >= links), fell + broken
    assert certified > 20
    assert fell > 0


@pytest.mark.parametrize("scale", [20.0, 60.0])
@pytest.mark.parametrize("make", [lambda: GATConv(4, 3), lambda: GATv2Conv(4, 3), lambda: Two(GATConv, scale=0.3)])
@torch.no_grad()
def test_where_one_neighbour_has_nearly_all_the_weight_its_deletion_counts(make, scale):
    torch.manual_seed(0)
    certified = fell = 0
    for _ in range(40):
        model, data = make().eval(), graph()
        data.x *= scale  # scores far apart: without the first neighbour, sums of all weights cancel to rounding
        budget = certify(model, data, against=Deletions(2)).budget
        for node in range(len(data.x)):
            broken = falls(model, data, node, 2)
            assert not (broken and budget[node] >= 2), node
            assert not (budget[node] == 1 and falls(model, data, node, 1)), node
            certified, fell = certified + int(budget[node] >= 1), fell + broken
    assert certified > 30
    assert fell > 10


@torch.no_grad()
def test_no_single_deletion_breaks_a_certificate_of_a_trained_model():
    data = datasets.load("synthetic")
    with torch.enable_grad():
        model = Vanilla(epochs=40).fit(backbones.build("gat", data), data).model
    budget = certify(model, data, against=Deletions(1)).budget
    assert (budget >= 1).double().mean() > 0.5
    for node in data.test_mask.nonzero().flatten()[:15].tolist():
        assert not (budget[node] >= 1 and falls(model, data, node, 1))


@torch.no_grad()
def test_without_self_loops_the_deletions_of_one_layer_are_a_bound():
    torch.manual_seed(9)
    data = graph()
    proof = certify(GATConv(4, 3, add_self_loops=False).eval(), data, against=Deletions(2))
    assert proof.how == "bound" and "may lose all" in proof.reason


@torch.no_grad()
def test_deletions_in_one_layer_are_exact():
    torch.manual_seed(1)
    for layer in (GATConv, GATv2Conv):
        for _ in range(6):
            model, data = layer(4, 3).eval(), graph()
            proof = certify(model, data, against=Deletions(2))
            assert proof.how == "exact"
            for node in range(len(data.x)):
                assert [bool(proof.budget[node] >= q) for q in (1, 2)] == [
                    not falls(model, data, node, q) for q in (1, 2)
                ]


@pytest.mark.parametrize("offset", [3e3, 1e5])
@torch.no_grad()
def test_a_large_part_that_all_values_share_counts_in_the_rounding(offset):
    """The classes differ by less than the last digits of their logits, and the scores are as large."""
    torch.manual_seed(0)
    certified = fell = 0
    for _ in range(6):
        model, data = GATConv(4, 2).eval(), graph(nodes=20)
        model.lin.weight.data[1] = model.lin.weight.data[0] + 0.05 * torch.randn(4)
        model.lin.weight.data[:, 0], data.x[:, 0] = offset, 1.0
        budget = certify(model, data, against=Deletions(1)).budget
        broken = torch.tensor([falls(model, data, node, 1) for node in range(20)])
        assert not (broken & (budget >= 1)).any()
        for against in (Features(1e-9), Deletions(1)):
            proof = certify(model, data, against=against)
            assert torch.equal(proof.prediction, model(data.x, data.edge_index).argmax(1))
        certified, fell = certified + int((budget >= 1).sum()), fell + int(broken.sum())
    assert fell > 0 and (certified > 0) == (offset < 1e4)


@torch.no_grad()
def test_rounding_hides_in_no_value_that_features_or_injections_change():
    torch.manual_seed(0)
    for offset, some in ((0.0, True), (1e7, False)):
        model, data = Two(GATConv, scale=0.1).eval(), graph(low=0.2, high=0.6)
        model.two.bias.data += offset + torch.tensor([1.0, 0.5, 0.0])
        for against in (Features(0.001), Injection(1, box=(0.2, 0.6)), Deletions(1)):
            assert bool(certify(model, data, against=against).certified().any()) == some


@torch.no_grad()
def test_the_curve_of_a_huge_budget_has_few_rows():
    torch.manual_seed(0)
    clique = torch.tensor([pair for pair in product(range(6), repeat=2) if pair[0] != pair[1]]).t()
    proof = certify(GATConv(4, 3).eval(), Data(x=torch.ones(6, 4), edge_index=clique), against=Deletions(10**11))
    assert proof.budget.tolist() == [10**11] * 6 and json.loads(proof.json())["curve"][-1]["budget"] == 10**11
    with pytest.raises(SettingError, match="at most"):
        Deletions(10**20)


@torch.no_grad()
def test_more_deletions_than_there_are_links_cost_nothing_more():
    torch.manual_seed(1)
    for loops in (True, False):
        model, data = GATConv(4, 3, add_self_loops=loops).eval(), graph()
        few, most = (certify(model, data, against=Deletions(q)).budget for q in (6, 10**9))
        assert torch.equal(torch.where(few == 6, 10**9, few), most)
        assert loops == bool((most == 10**9).any())


@pytest.mark.parametrize("touched", [0, 1])
@torch.no_grad()
def test_no_injection_changes_a_certified_class_or_evicts_a_certified_member(touched):
    generator, certified, fell, members = torch.Generator().manual_seed(0), 0, 0, []
    torch.manual_seed(2)
    for _ in range(5):
        model, data = Two(GATConv, scale=0.2).eval(), graph(share=0.7, low=0.2, high=0.6)
        for nodes in (1, 2):
            allowed = Injection(nodes, box=(0.2, 0.6), neighbours=touched)
            proof = certify(model, data, against=allowed, k=3)
            clean, wide, victims = cases(data, allowed, 40, generator)
            before, after = read(model, clean), read(model, wide)
            changed = before.logits[victims].argmax(1) != after.logits[victims].argmax(1)
            assert not (changed & proof.certified()[victims % len(data.x)]).any()
            kept = top_overlap(before.explanation, after.explanation, 3)[victims]
            assert (kept >= proof.overlap[victims % len(data.x)] - 1e-9).all()
            fell, certified = fell + int(changed.sum()), certified + int(proof.certified().sum())
            members.append(float(proof.overlap.mean()))
    assert certified > 10
    assert fell > 0
    assert max(members) > 0.3


@torch.no_grad()
def test_states_under_injection_stay_in_their_box():
    torch.manual_seed(3)
    generator, allowed = torch.Generator().manual_seed(0), Injection(2, box=(-1.0, 1.0))
    for _ in range(5):
        model, data = Two(GATConv).eval(), graph()
        chain = parse_chain(model, data)
        first, _ = two_layers(chain)
        low, high = injected_states(chain, first, StateBounds.of(chain, allowed), allowed)
        for node in range(len(data.x)):
            for _ in range(20):
                now = injected(data, node, allowed, generator)
                state = nn.functional.elu(model.one(now.x, now.edge_index))[node]
                assert (state >= low[node] - 1e-5).all() and (state <= high[node] + 1e-5).all()


@torch.no_grad()
def test_rows_with_few_ones_have_tighter_bounds_that_no_such_row_breaks():
    torch.manual_seed(0)
    rows, certified, fell = torch.tensor([*product((0.0, 1.0), repeat=4)]), {1: 0, 4: 0}, 0
    for _ in range(4):
        model, data = Two(GATConv, scale=0.1).eval(), graph()
        model.two.bias.data += torch.tensor([1.0, 0.5, 0.0])
        data.x = rows[rows.sum(1) <= 1][torch.randint(5, (7,))]
        for ones in certified:
            proof = certify(model, data, against=Injection(1, (0.0, 1.0), ones=ones))
            certified[ones] += int(proof.certified().sum())
            allowed = rows[rows.sum(1) <= ones]  # every row, each in a copy of the graph
            x = torch.cat([torch.cat([data.x, row[None]]) for row in allowed])
            for node in range(7):
                links = torch.cat([data.edge_index, torch.tensor([[7, node], [node, 7]])], dim=1)
                links = torch.cat([links + 8 * copy for copy in range(len(allowed))], dim=1)
                answers = model(x, links).view(-1, 8, 3)[:, node].argmax(1)
                changed = bool((answers != proof.prediction[node]).any())
                fell += changed
                assert not (proof.certified()[node] and changed)
    assert certified[1] > certified[4] > 0
    assert fell > 0


def test_rows_with_more_ones_than_the_attacker_has_are_said():
    torch.manual_seed(0)
    data = graph(low=0.0)
    data.x[0] = 1.0
    proof = certify(Two(GATConv), data, against=Injection(1, (0.0, 1.0), ones=3))
    assert proof.how == "none" and "has 4 ones, more than ones=3" in proof.reason


@pytest.mark.parametrize("layer", [GATConv, GATv2Conv])
@pytest.mark.parametrize("loops", [True, False])
@torch.no_grad()
def test_no_move_of_the_features_changes_a_certified_class(layer, loops):
    torch.manual_seed(6)
    certified = fell = 0
    for deep in (True, False) * 3:
        settings, data = {"add_self_loops": loops}, graph()
        model = (Two(layer, scale=0.3, **settings) if deep else layer(4, 3, **settings)).eval()
        for radius in (0.02, 0.1, 0.4):
            proof = certify(model, data, against=Features(radius))
            many = 400
            step = radius * (2 * torch.rand(many, *data.x.shape) - 1)
            step[::2] = radius * step[::2].sign()
            links = torch.cat([data.edge_index + i * len(data.x) for i in range(many)], dim=1)
            answers = model((data.x + step).flatten(0, 1), links).argmax(1).view(many, -1)
            changed = (answers != proof.prediction).any(0)
            assert not (changed & proof.certified()).any()
            certified, fell = certified + int(proof.certified().sum()), fell + int(changed.sum())
    assert certified > 20
    assert fell > 0


@torch.no_grad()
def test_the_bound_of_a_mean_is_attained():
    torch.manual_seed(7)
    data = graph()
    data.edge_index = data.edge_index[:, data.edge_index[1] != 0]  # without loops, only a bias is left of 0
    for loops in (True, False):
        chain = parse_chain(Two(GATConv, add_self_loops=loops), data)
        assert chain.first is not None
        low, high = mean_bounds(chain.first, chain.x, chain.x, chain)  # a box of one point
        torch.testing.assert_close(low, chain.pre)
        torch.testing.assert_close(high, chain.pre)


@pytest.mark.parametrize("loops", [True, False])
@torch.no_grad()
def test_an_injection_never_costs_more_members_than_the_order_allows(loops):
    torch.manual_seed(4)
    generator, tight = torch.Generator().manual_seed(1), False
    for _ in range(6):
        model, data = Two(GATConv, add_self_loops=loops).double().eval(), graph(share=0.8)
        data.x = data.x.double()
        for nodes in (1, 2):
            clean, wide, victims = cases(data, Injection(nodes, box=(-3.0, 3.0)), 30, generator)
            before, after = read(model, clean).explanation, read(model, wide).explanation
            for k in (2, 4):
                promised = ordered_overlap(before, k, nodes)
                assert (promised[before.degree > k] >= 1 - (nodes + loops) / k - 1e-9).all()
                kept = top_overlap(before, after, k)
                assert (kept[victims] >= promised[victims] - 1e-9).all()
                tight |= bool(((kept == promised) & (kept < 1))[victims].any())
    assert tight


@torch.no_grad()
def test_neighbours_that_differ_by_rounding_only_may_change_places():
    """Their scores differ less where the leaky ReLU is flat, and single precision swaps them there."""
    fell = 0
    for seed in range(12):
        torch.manual_seed(seed)
        model, x = Two(GATConv, scale=0.0).eval(), (torch.rand(1, 4) + 1e-6 * torch.randn(13, 4)).clamp(0, 1)
        links = torch.stack([torch.arange(1, 13), torch.zeros(12, dtype=torch.long)])
        data = Data(x=x, edge_index=torch.cat([links, links.flip(0)], dim=1))
        clean = read(model, data).explanation
        promised = ordered_overlap(clean, 5, 1)[0]
        for row in torch.randint(0, 2, (4, 1, 4)).float():
            now = read(model, add_nodes(data, row, torch.tensor([[13, 0], [0, 13]]))).explanation
            kept = float(top_overlap(clean, now, 5)[0])
            assert kept >= promised - 1e-9
            fell += kept < 0.6 - 1e-9  # what the order of exact scores allows
    assert fell > 0


def test_members_close_to_the_first_that_is_none_are_not_promised():
    def promised(*weight):
        links = torch.stack([torch.arange(len(weight)), torch.full((len(weight),), 9)])
        return float(ordered_overlap(Attention(torch.tensor(weight)[:, None], links, num_targets=10), 2, 1)[9])

    assert promised(0.4, 0.3, 0.2, 0.1) == 0.5
    assert promised(0.3, 0.3, 0.3, 0.1) == promised(0.4, 0.25 + 1e-6, 0.25, 0.1) == 0.0
    assert promised(0.3, 0.3, 0.2, 0.2) == 0.5  # both are members
    assert promised(0.5, 0.5) == 0.5


@torch.no_grad()
def test_gatv2_has_no_such_order():
    torch.manual_seed(0)
    generator, broken = torch.Generator().manual_seed(1), 0
    for _ in range(6):
        model, data = Two(GATv2Conv, scale=1.0).eval(), graph(share=0.9)
        clean, wide, victims = cases(data, Injection(1, box=(-9.0, 9.0)), 30, generator)
        before, after = read(model, clean).explanation, read(model, wide).explanation
        broken += int((top_overlap(before, after, 4) < ordered_overlap(before, 4, 1) - 1e-9)[victims].sum())
    assert broken > 0


@pytest.mark.parametrize("layer", [GATConv, GATv2Conv, TransformerConv])
@torch.no_grad()
def test_clones_of_the_strongest_take_what_is_said_and_evict_the_rest(layer):
    torch.manual_seed(5)
    model, data = layer(4, 3).double().eval(), graph(share=0.8)
    data.x = data.x.double()
    clean = read(model, data).explanation.coalesce()
    for node in range(len(data.x)):
        own = clean.target == node
        strongest = clean.source[own][clean.weight[own, 0].argmax()]
        for nodes in (1, 2):
            new = torch.stack([torch.arange(7, 7 + nodes), torch.full((nodes,), node)])
            now = read(model, add_nodes(data, data.x[strongest].expand(nodes, -1), new)).explanation
            taken = now.weight[(now.target == node) & (now.source >= 7)].sum()
            assert torch.isclose(taken, cloned_weight(clean, nodes)[node])
            for k in (1, 2, 3):
                assert torch.isclose(top_overlap(clean, now, k)[node].double(), cloned_overlap(clean, k, nodes)[node])


def test_what_is_not_known_says_none_and_why():
    data = datasets.load("synthetic")
    gt = backbones.BACKBONES["gt"].prepare(data)
    gat, gatv2 = (backbones.build(name, data) for name in ("gat", "gatv2"))
    cases = [
        (backbones.build("gt", gt), gt, Deletions(1), "TransformerConv"),
        (gat, data, Links(1), "Voted"),
        (backbones.build("gt", gt), gt, Features(0.1), "TransformerConv"),
        (gat, data, Features(99.0), "certifies no node"),
        (gatv2, data, Injection(1, box=(-9.0, 9.0)), "GATv2Conv"),
        (gat, data, Injection(1, box=(0.0, 0.1)), "outside the box"),
        (Voted(gat, 3), data, Injection(1), "links"),
        (GATConv(data.x.size(1), 4, heads=2), data, Deletions(1), "several heads"),
    ]
    for model, on, against, why in cases:
        proof = certify(model, on, against=against)
        assert proof.how == "none" and why in proof.reason
        assert not proof.certified().any() and proof.shares()["certified"] == 0.0
    with pytest.raises(SettingError, match="no perturbation set"):
        certify(gat, data, against=loose("links"))


def test_more_than_an_activation_between_the_layers_is_recognised():
    class Skip(Two):
        def forward(self, x, edge_index):
            h = self.one(x, edge_index)
            return self.two(nn.functional.elu(h) + h, edge_index)

    torch.manual_seed(0)
    with pytest.raises(NoBoundError, match="residual"):
        parse_chain(Skip(GATConv), graph())


def test_an_activation_that_is_only_close_to_a_known_one_is_not_taken_for_it():
    """The logits agree to three digits, and so they did for relu, which cuts off what this one lets through."""

    class Leaky(Two):
        def forward(self, x, edge_index):
            return self.two(nn.functional.leaky_relu(self.one(x, edge_index), 1e-4), edge_index)

    class Relu(Two):
        def forward(self, x, edge_index):
            return self.two(nn.functional.relu(self.one(x, edge_index)), edge_index)

    torch.manual_seed(0)
    data = graph()
    with pytest.raises(NoBoundError, match="activation"):
        parse_chain(Leaky(GATConv), data)
    assert parse_chain(Relu(GATConv), data).act is nn.functional.relu


def test_a_set_of_perturbations_without_sense_is_refused():
    for make in (lambda: Links(-1), lambda: Deletions(0), lambda: Injection(0), lambda: Features(-0.1)):
        with pytest.raises(SettingError, match="at least"):
            make()
    with pytest.raises(SettingError, match="lower one first"):
        Injection(1, box=(1.0, 0.0))


def test_shares_stand_beside_the_plain_model_and_the_one_without_links():
    data = datasets.load("synthetic")
    model = backbones.build("gat", data)
    proof = certify(Voted(model, 5), data, against=Links(2))
    shares = proof.shares()
    test, plain = data.test_mask, model.eval()(data.x, data.edge_index).argmax(1)
    alone = model(data.x, data.edge_index[:, :0]).argmax(1)
    assert shares["plain"] == pytest.approx(float((plain == data.y)[test].double().mean()))
    assert shares["without_links"] == pytest.approx(float((alone == data.y)[test].double().mean()))
    assert shares["accuracy"] == pytest.approx(float((proof.prediction == data.y)[test].double().mean()))
    both = proof.certified() & (proof.prediction == data.y)
    assert shares["certified_and_right"] == pytest.approx(float(both[test].double().mean()))
    assert (proof.budget >= 1).sum() >= proof.certified().sum()
    assert proof.shares(1)["certified"] == pytest.approx(float((proof.budget >= 1)[test].double().mean()))
    assert "vote" in str(proof) and "without links" in str(proof)


def test_the_attention_ball_has_the_same_words():
    data = datasets.load("synthetic")
    proof = certify(backbones.build("gat", data), data, against=AttentionBall(0.01), k=3)
    assert (proof.how, proof.overlap_how) == ("bound", "exact")
    assert proof.overlap.shape == proof.budget.shape == (data.num_nodes,)


def test_without_an_attacker_the_answer_is_the_certificate_of_the_attention():
    data = datasets.load("synthetic")
    model = backbones.build("gat", data)
    assert isinstance(certify(model, data, k=3, steps=1), Certificate)
    proof = loose(certify(model, data, against=AttentionBall(0.01), k=3))
    certificate = loose(certify(model, data, k=3, radius=0.01, steps=1))
    assert torch.equal(proof.overlap, certificate.beta2.values)
    assert torch.equal(proof.budget, certificate.class_radius.nextafter(torch.zeros(1).double()))


@pytest.mark.parametrize("setting", [{"radius": 0.1}, {"norm": "l2"}, {"steps": 1}, {"vanilla": nn.Identity()}])
def test_a_setting_of_the_certificate_is_refused_beside_an_attacker(setting):
    with pytest.raises(SettingError, match=f"{next(iter(setting))} and against=Links"):
        loose(certify)(nn.Identity(), graph(), against=Links(1), **setting)


def by_hand(**given):
    """Four items: budgets 0, 1, 2, 2; the third is predicted wrongly, the first is not tested."""
    tensors = {"prediction": [0, 1, 0, 1], "budget": [0, 1, 2, 2], "label": [0, 1, 1, 1], "plain": [1, 1, 1, 1]}
    tensors |= {"without_links": [0, 0, 0, 1], "test": [False, True, True, True]} | given
    return loose(Proof)(Links(2), "vote", "counted", **{name: torch.tensor(one) for name, one in tensors.items()})


def test_the_curve_is_the_share_of_the_items_at_each_budget():
    known = {"accuracy": 2 / 3, "plain": 1.0, "without_links": 1 / 3}
    one, two = by_hand().curve()
    assert one == pytest.approx({"budget": 1, "certified": 1.0, "certified_and_right": 2 / 3, **known})
    assert two == pytest.approx({"budget": 2, "certified": 2 / 3, "certified_and_right": 1 / 3, **known})
    assert [row["certified"] for row in by_hand().curve([3, 0])] == [0.0, 1.0]


def test_a_proof_says_in_a_sentence_what_it_says_in_json_and_in_a_file(tmp_path):
    proof = by_hand(overlap=[0.25, 0.75, 1.0, float("nan")])
    expected = (
        "No 2 changed links can change the class of 66.7% of the test items, and 33.3% are certified and right (vote)."
    )
    assert proof.sentence() == expected and str(proof).startswith(expected)
    assert "accuracy of the model on the graph without links" in str(proof)
    assert repr(proof).startswith("Proof(Links(links=2), vote, 4 items: certified 0.667, certified and right 0.333")
    for name in ("p.json", "p.txt"):
        proof.save(tmp_path / name)
    assert (tmp_path / "p.txt").read_text() == str(proof) + "\n"
    saved = json.loads((tmp_path / "p.json").read_text())
    assert saved["against"] == {"name": "Links", "links": 2}
    assert saved["curve"] == proof.curve() and saved["overlap"] == pytest.approx(2 / 3)
    with pytest.raises(DataError, match=r"\.json or \.txt"):
        proof.save(tmp_path / "p.html")


def test_a_proof_says_what_is_known_of_one_item():
    proof = by_hand(overlap=[0.25, 0.75, 1.0, 1.0])
    known = {"prediction": 0, "right": False, "budget": 2, "how": "vote", "overlap": 1.0, "overlap_how": "none"}
    assert proof.item(2) == known
    assert proof.item(0)["how"] == "none"
    assert Proof(Links(1), "none", "no votes", torch.zeros(1), torch.zeros(1)).sentence() == (
        "Nothing is proved against 1 changed link: no votes."
    )


def test_nothing_is_certified_without_a_proof_also_at_budget_0():
    proof = by_hand(budget=[0, 0, 0, 0])
    assert proof.certified(0).all()
    assert not replace(proof, how="none").certified(0).any()


def test_items_without_a_label_are_in_no_accuracy():
    proof = replace(by_hand(label=[0, 0, -1, -1]), test=None)
    shares = {"certified": 0.75, "certified_and_right": 0.0, "accuracy": 0.5, "plain": 0.0, "without_links": 1.0}
    assert proof.shares(1) == shares
    assert proof.shares(0)["certified_and_right"] == 0.5
    assert [proof.item(i)["right"] for i in range(4)] == [True, False, None, None]
    assert "0.0% of the labelled ones are certified and right" in proof.sentence()
    tested = replace(proof, test=torch.tensor([True, False, False, False]))
    assert tested.shares(1)["accuracy"] == 1 and ", and 0.0% are certified" in tested.sentence()
    assert by_hand(label=[-1, -1, -1, -1]).shares()["plain"] is None


class Clipped(nn.Module):
    """Rows of non-negative values, and a ReLU that only a negative change of the attention meets."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = GATConv(8, 6, bias=False), nn.Linear(6, 3)
        self.conv.lin.weight.data.abs_()

    def forward(self, x, edge_index):
        return self.out(self.conv(x, edge_index).relu())


def test_a_layer_that_negative_changes_of_the_attention_clip_is_not_linear():
    torch.manual_seed(0)
    data = Data(x=(torch.rand(12, 8) < 0.4).float(), edge_index=erdos_renyi_graph(12, 0.3))
    proof = certify(Clipped(), data, against=AttentionBall(0.5), k=3)
    assert (proof.how, proof.reason) == ("none", "the logits are not linear in the weights")


@pytest.mark.parametrize("neighbours", [16, 400])
@pytest.mark.parametrize("edge", [60.0, 130.0])
def test_logits_that_bend_far_away_only_are_not_linear(edge, neighbours):
    class Bends(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GATConv(2, 2, add_self_loops=False, bias=False)
            self.conv.lin.weight.data = torch.eye(2)

        def forward(self, x, edge_index):
            h = self.conv(x, edge_index)[:, 0]
            return torch.stack([torch.full_like(h, 2.0), 1e3 * (h - edge).relu()], dim=1)

    torch.manual_seed(0)
    x = torch.ones(neighbours + 1, 2)
    x[1::2] = -1
    data = Data(x=x, edge_index=torch.stack([torch.arange(1, len(x)), torch.zeros(neighbours, dtype=torch.long)]))
    proof = certify(Bends().eval(), data, against=AttentionBall(0.3, "linf"))
    assert (proof.how, proof.reason) == ("none", "the logits are not linear in the weights")


def test_no_push_of_the_attention_inside_the_budget_changes_a_class_by_rounding():
    torch.manual_seed(0)
    for _ in range(3):
        data, model = Data(x=torch.randn(40, 8), edge_index=erdos_renyi_graph(40, 0.15)), GATConv(8, 3).eval()
        proof, read_model = certify(model, data, against=AttentionBall(0.1), k=3), Reader(model)
        clean = read_model(data).detach()
        attention, site = clean.explanation, next(iter(clean.attention))
        value = loose(value_vectors(read_model, data, site, attention.weight, attention.target))[:, 0]
        assert (proof.budget > 0).sum() > 30
        for rank in (1, 2):
            delta = torch.zeros_like(attention.weight)
            rival = clean.logits.topk(3).indices[:, rank]
            for node in range(40):
                edges = (attention.target == node).nonzero().flatten()
                lean = value[edges, rival[node]] - value[edges, proof.prediction[node]]
                best = lean.abs().argmax()
                delta[edges[best]] = (proof.budget[node] * lean[best].sign()).float()
            now = read_model(data, weight_delta={site: delta}).logits.argmax(1)
            assert torch.equal(now, proof.prediction)


@pytest.mark.parametrize("layer", [GATConv, GATv2Conv])
@pytest.mark.parametrize("layers", [1, 2])
def test_deletions_are_the_same_in_parts_of_the_graph(layer, layers, monkeypatch):
    torch.manual_seed(0)
    found = set()
    for _ in range(3):
        chain = parse_chain((Two(layer) if layers == 2 else layer(4, 3)).eval(), graph())
        whole = [certified_under_deletions(chain, links) for links in (1, 2)]
        covered = []
        monkeypatch.setattr("fgai.certificates.deletions.PART", 4)
        for nodes, places, part in chain.parts(4):
            covered += nodes.tolist()
            assert torch.equal(part.hidden[places], chain.hidden[nodes])
            inside = [set(part.hidden[part.source[part.target == at], 0].tolist()) for at in places.tolist()]
            assert inside == [set(chain.hidden[chain.source[chain.target == v], 0].tolist()) for v in nodes.tolist()]
        assert covered == [*range(chain.nodes)]
        assert all(torch.equal(certified_under_deletions(chain, 1 + i), whole[i]) for i in range(2))
        found |= {*whole[0].tolist()}
        monkeypatch.undo()
    assert found == {True, False}


def test_a_layer_on_its_projections_is_the_same():
    for layer in (GATConv, GATv2Conv):
        chain = parse_chain(Two(layer).eval(), graph())
        short = chain.projected()
        for one in ("values", "scores"):
            ends = (chain.source, chain.target) if one == "scores" else ()
            found, expected = (getattr(c.first, one)(c.x, *ends) for c in (short, chain))
            assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_chain_in_double_precision_has_no_gradients():
    """A cast to the same type is the parameter itself."""
    data = graph()
    data.x = data.x.double()
    chain = parse_chain(Two(GATConv).double().eval(), data)
    assert not any(part.requires_grad for part in (chain.logits, chain.last.bias, chain.last.value, chain.last.source))
