"""What an audit, a proof or a training gives a model is what the model reads; where it is not, it is said."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.explain import Explainer
from torch_geometric.nn import GATConv, GATv2Conv, MessagePassing
from torch_geometric.transforms import ToUndirected
from torch_geometric.utils import softmax, to_undirected

import fgai
from fgai import NodeInjection, Perturbation, Voted, datasets
from fgai.adversaries import EdgeRewiring, FeatureBall
from fgai.auditing.doubts import has_slope
from fgai.certificates import Deletions, Features, Injection, Links
from fgai.checks import refuse_sampled
from fgai.datasets.split import split_nodes
from fgai.errors import CallError, DataError, NotDifferentiableError, SettingError, TapError
from fgai.grades import grade_stable
from fgai.graph import add_edges, add_nodes
from fgai.large import Loader
from fgai.reading import open_reader
from fgai.trial import attacked_trial, clean_trial
from fgai.typed import join
from loose import loose

ATTACK = NodeInjection(nodes=2, edges=5, steps=2)
DATA: Any = split_nodes(datasets.synthetic(60, 400, 8, 3), 0)


class Net(nn.Module):
    """Two layers of attention; `change` is applied to the inputs first."""

    def __init__(self, change=lambda x, edge_index: (x, edge_index)):
        super().__init__()
        torch.manual_seed(0)
        self.change, self.first, self.last = change, GATConv(8, 8), GATConv(8, 3)

    def forward(self, x, edge_index):
        x, edge_index = self.change(x, edge_index)
        return self.last(self.first(x, edge_index).relu(), edge_index)


class Weighted(MessagePassing):
    """Attention whose scores have the logarithm of the link's weight: a link of weight 0 has no influence."""

    def __init__(self):
        super().__init__(aggr="add", node_dim=0)
        torch.manual_seed(0)
        self.score, self.out = nn.Linear(16, 1), nn.Linear(8, 3)

    def forward(self, x, edge_index, edge_weight):
        return self.out(self.propagate(edge_index, x=x, edge_weight=edge_weight))

    def message(self, x_i, x_j, index, ptr, size_i, edge_weight):  # pyright: ignore[reportIncompatibleMethodOverride]
        scores = self.score(torch.cat([x_i, x_j], dim=1)) + (edge_weight[:, None] + 1e-6).log()
        return softmax(scores, index, ptr, size_i) * x_j


def test_added_links_have_the_median_weight_of_the_graph():
    data = DATA.clone()
    data.edge_weight = torch.linspace(1.0, 3.0, data.num_edges).round()
    data.edge_attr = torch.stack([data.edge_weight, -data.edge_weight], dim=1)
    more = add_nodes(data, torch.ones(1, 8), torch.tensor([[60, 3], [3, 60]]))
    middle = data.edge_weight.median()
    assert more.edge_weight[-2:].tolist() == [middle] * 2 and more.edge_attr[-1].tolist() == [middle, -middle]


def test_added_links_have_a_row_that_the_graph_has():
    data = Data(x=torch.ones(3, 8), edge_index=torch.tensor([[0, 1, 2, 0, 1], [1, 2, 0, 2, 0]]))
    data.edge_attr = torch.eye(4)[[0, 1, 1, 2, 3]]  # kinds of bonds, none of them with the majority
    data.distance = torch.tensor([[1.0, 9.0], [2.0, 8.0], [3.0, 1.0], [4.0, 3.0], [5.0, 2.0]])  # medians 3 and 3
    more = add_edges(data, torch.tensor([[2], [1]]))
    assert more.edge_attr[-1].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert more.distance[-1].tolist() == [4.0, 3.0]


def test_added_links_of_a_typed_graph_have_the_median_of_their_relation():
    data = HeteroData(a={"x": torch.ones(3, 2), "y": torch.tensor([0, 1, 1])}, b={"x": torch.ones(2, 2)})
    for number, relation in enumerate((("a", "to", "a"), ("b", "to", "a"))):
        data[relation].edge_index = torch.tensor([[0, 1, 1], [0, 1, 2]])
        data[relation].edge_attr = torch.tensor([[1.0], [2.0], [9.0]]) + 100 * number
    more = add_edges(
        join(data), torch.tensor([[3, 0], [0, 1]]), node_type=torch.zeros(0).long(), edge_type=torch.tensor([1, 0])
    )
    assert more.edge_attr[-2:].flatten().tolist() == [102.0, 2.0]


def test_an_attack_reaches_a_model_that_weighs_links_and_the_report_says_how():
    data = DATA.clone()
    plain = fgai.audit(
        Weighted(), data, ATTACK, seeds=1, call=lambda m, g: m(g.x, g.edge_index, g.x.new_ones(g.num_edges))
    )
    data.edge_weight = torch.ones(data.num_edges)
    weighted = fgai.audit(Weighted(), data, ATTACK, seeds=1)
    assert weighted.attacked == plain.attacked and weighted.attacked["overlap"].mean < 1
    assert "links that the attack adds have the median of `edge_weight`" in weighted.notes
    assert not any("median" in note for note in plain.notes)


class Stored(nn.Module):
    """A model that has its own edges."""

    def __init__(self):
        super().__init__()
        self.net = Net()
        self.register_buffer("edges", DATA.edge_index)

    def forward(self, x, edge_index):
        return self.net(x, self.edges)


@pytest.mark.parametrize(
    "job",
    [
        lambda model: fgai.certify(Voted(model, 5), DATA, against=Links(1)),
        lambda model: fgai.measure_faithfulness(model, DATA),
        lambda model: fgai.FGAI(epochs=1, adversary=ATTACK).fit(model, DATA),
        lambda model: fgai.audit(model, DATA, ATTACK, seeds=1),
    ],
    ids=["votes", "faithfulness", "training", "audit"],
)
def test_a_model_that_has_its_own_edges_is_refused_everywhere(job):
    with pytest.raises(CallError, match="does not use the links"):
        job(Stored())
    job(Net())


class Stepwise(Net):
    """A model that rounds its answers and keeps a gradient in the features: small changes of attention do nothing."""

    def forward(self, x, edge_index):
        return x @ torch.ones(x.size(1), 3) + super().forward(x, edge_index).round()


def test_a_model_without_slope_is_not_called_stable():
    rounded = Net(lambda x, edge_index: ((4 * x).round() / 4, edge_index))
    for model, expected in ((rounded, False), (Net(), True)):
        with open_reader(model) as read:
            clean = clean_trial(read, DATA)
            assert has_slope(attacked_trial(ATTACK, "cross-entropy", clean, 0)) is expected and has_slope(clean)
            assert has_slope(attacked_trial(FeatureBall(steps=1), "cross-entropy", clean, 0)) is expected
    assert grade_stable("an attack", 1.0, 0.0, 0.0, doubt="no slope").value == "unknown"
    assert grade_stable("an attack", 0.1, 0.0, 0.0, doubt="no slope").value == "no"  # what it found is true


def test_a_model_without_slope_in_its_links_is_not_called_stable():
    for model, expected in ((Stepwise(), False), (Net(), True)):
        with open_reader(model) as read:
            trial = attacked_trial(EdgeRewiring(2, 2, rounds=1), "cross-entropy", clean_trial(read, DATA), 0)
            assert has_slope(trial) is expected


WHOLE_GRAPH = pytest.mark.parametrize(
    "job",
    [
        lambda batch: fgai.audit(Net(), batch, ATTACK, seeds=1),
        lambda batch: fgai.measure_faithfulness(Net(), batch),
        lambda batch: fgai.certify(Net(), batch),
        lambda batch: fgai.certify(Voted(Net(), 5), batch, against=Links(1)),
    ],
    ids=["audit", "faithfulness", "certificate", "votes"],
)


@WHOLE_GRAPH
def test_a_sampled_batch_is_refused(job):
    batch = next(iter(Loader(DATA, fanout=(2, 2), batch=10, seed_nodes=DATA.test_mask)))
    with pytest.raises(DataError, match="sampled batch: 10 of its"):
        job(batch)


@WHOLE_GRAPH
@pytest.mark.parametrize("known", [("num_sampled_nodes",), ("n_id", "e_id")])
def test_a_sampled_batch_of_pairs_is_refused(job, known):
    """The loaders of PyG write no `batch_size` if they sample around pairs."""
    batch: Any = next(iter(Loader(DATA, fanout=(2, 2), batch=10)))
    pairs = batch.from_dict({name: batch[name] for name in ("x", "edge_index", *known)})
    pairs.edge_label_index = torch.tensor([[0, 1], [2, 3]])
    with pytest.raises(DataError, match=r"sampled batch: its .* nodes are some of a larger graph"):
        job(pairs)


def test_graphs_that_were_sampled_and_the_whole_graph_with_ids_are_no_sampled_batches():
    batch: Any = next(iter(Loader(DATA, fanout=(2, 2), batch=10)))
    graph = batch.from_dict({name: batch[name] for name in ("x", "edge_index", "n_id", "e_id")})
    graph.y = torch.tensor([0])
    refuse_sampled(Batch.from_data_list([graph, graph]))
    whole: Any = DATA.clone()
    whole.n_id, whole.e_id = torch.arange(60), torch.arange(DATA.num_edges)
    refuse_sampled(whole)


def test_floats_of_a_typed_graph_that_would_not_reach_the_model_are_refused():
    data = HeteroData(a={"x": torch.ones(3, 2), "y": torch.tensor([0, 1, 1])})
    data["a", "to", "a"].edge_index = torch.tensor([[0, 1], [1, 2]])
    data["a", "to", "a"].edge_weight = torch.ones(2)
    with pytest.raises(DataError, match=r"`edge_weight` of \('a', 'to', 'a'\) would not reach the model"):
        join(data)


class Optional(nn.Module):
    """A model whose features of links have a name of their own."""

    def __init__(self):
        super().__init__()
        self.conv = GATv2Conv(8, 3, edge_dim=4)

    def forward(self, x, edge_index, edge_feats=None):
        return self.conv(x, edge_index, edge_feats)


def test_an_optional_argument_that_the_graph_has_under_another_name_is_asked_for():
    data = DATA.clone()
    data.edge_attr = torch.ones(data.num_edges, 4)
    with pytest.raises(CallError, match=r"takes \['edge_feats'\], and the graph has `edge_attr` instead"):
        fgai.read(Optional(), data)
    assert len(fgai.read(Optional(), data, lambda m, g: m(g.x, g.edge_index, g.edge_attr)).logits) == 60
    assert len(fgai.read(Net(), data).logits) == 60  # takes no features of links


def test_votes_are_calibrated_on_a_mask_of_booleans():
    data = DATA.clone()
    data.val_mask = data.val_mask.long()
    with pytest.raises(DataError, match="a mask is booleans"):
        Voted(Net(), 5).calibrate(data)
    data.val_mask, data.y = data.val_mask.bool(), data.y[:, None]
    assert Voted(Net(), 5).calibrate(data, groups=(3, 5)).groups in (3, 5)


def test_a_model_that_makes_edges_undirected_is_noted():
    directed = DATA.clone()
    directed.edge_index = DATA.edge_index[:, DATA.edge_index[0] < DATA.edge_index[1]]
    model = Net(lambda x, edge_index: (x, to_undirected(edge_index, num_nodes=len(x))))
    assert "makes the edges undirected" in str(fgai.measure_faithfulness(model, directed, nodes=torch.arange(20)).notes)
    both = ToUndirected()(directed.clone())
    assert "undirected" not in str(fgai.measure_faithfulness(model, both, nodes=torch.arange(20)).notes)


def test_nodes_are_tested_once():
    with pytest.raises(SettingError, match="40 ids, and 20 different ones"):
        fgai.measure_faithfulness(Net(), DATA, nodes=torch.arange(20).repeat(2))


def test_the_explainer_refuses_layers_that_are_no_chain_as_a_reading_does():
    class Parallel(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = GATConv(8, 3), GATConv(8, 3)

        def forward(self, x, edge_index):
            return self.a(x, edge_index) + self.b(x, edge_index)

    settings = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    how = {"explanation_type": "model", "edge_mask_type": "object", "model_config": settings}
    explain = Explainer(Parallel(), loose(fgai.AttentionExplainer("tree")), **how)
    with pytest.raises(TapError, match="not a chain"):
        explain(DATA.x, DATA.edge_index, index=0)


def test_a_call_for_no_model_of_a_comparison_is_refused():
    with pytest.raises(SettingError, match=r"call has \['two'\], and the models are \['one'\]"):
        fgai.compare({"one": Net()}, DATA, ATTACK, seeds=1, call={"two": None})


@pytest.mark.parametrize("against", [Links(1), Deletions(1), Features(0.1), Injection(1, (-1.0, 1.0))], ids=str)
def test_features_that_are_no_floats_are_refused_by_proofs(against):
    data = DATA.clone()
    data.x = torch.arange(60)
    model = Net(lambda x, edge_index: (torch.eye(60)[x][:, :8], edge_index))
    with pytest.raises(DataError, match=r"`x` is torch.int64 \[60\]"):
        fgai.certify(Voted(model, 5) if isinstance(against, Links) else model, data, against=against)


def test_what_is_no_model_and_what_has_no_weights_yet_is_said():
    with pytest.raises(CallError, match="OrderedDict is not a model"):
        fgai.audit(loose(Net().state_dict()), DATA)
    with pytest.raises(CallError, match="GATConv has no weights yet"):
        fgai.read(GATConv(-1, 3), DATA)
    with pytest.raises(SettingError, match=r"give against=Links"):
        fgai.certify(Voted(Net(), 5), DATA)
    with pytest.raises(SettingError, match=r"audit voted\.model"):
        fgai.audit(Voted(Net(), 5), DATA)
    data = DATA.clone()
    data.x = data.x.to_sparse_csr()
    with pytest.raises(DataError, match="to_sparse_coo"):
        fgai.audit(Net(), data)


def test_a_saved_perturbation_adds_the_same_links():
    data = DATA.clone()
    data.edge_weight = torch.full((data.num_edges,), 2.0)
    change = Perturbation(x=torch.ones(1, 8), added=torch.tensor([[60], [3]]))
    assert change.apply(data).edge_weight[-1] == 2.0


def test_a_compiled_model_is_read_as_it_was_written():
    plain, wrapped, inside = Net(), torch.compile(Net(), backend="eager"), Net()
    inside.compile(backend="eager")
    with torch.no_grad():
        wrapped(DATA.x, DATA.edge_index)  # compiled before fgai reads it
    plain, wrapped, inside = (fgai.audit(model, DATA, ATTACK, seeds=1) for model in (plain, wrapped, inside))
    assert inside.attacked == wrapped.attacked == plain.attacked and wrapped.clean == plain.clean


class Asking(Net):
    """A model that asks for its attention, and does not use it."""

    def forward(self, x, edge_index):
        hidden, _ = self.first(x, edge_index, return_attention_weights=True)
        return self.last(hidden.relu(), edge_index)


class Storing(Net):
    """A model that stores its attention, with its gradient, to show it."""

    def forward(self, x, edge_index):
        hidden, self.seen = self.first(x, edge_index, return_attention_weights=True)
        return self.last(hidden.relu(), edge_index)


def test_a_model_that_stores_what_it_computed_is_trained():
    model, plain = Storing(), Asking()  # layers that are asked for weights add up edges in another order than others
    model(DATA.x, DATA.edge_index)
    fits = [fgai.FGAI(epochs=2, adversary=ATTACK).fit(one, DATA).model.state_dict() for one in (model, plain)]
    assert all(torch.equal(fits[0][name], fits[1][name]) for name in plain.state_dict())
    assert model.seen[1].requires_grad  # not changed


@pytest.mark.parametrize(
    "change",
    [
        lambda model: nn.utils.parametrizations.weight_norm(model.first.lin),
        lambda model: prune.l1_unstructured(model.first.lin, "weight", amount=0.5),
    ],
    ids=["weight-norm", "pruned"],
)
def test_weights_that_pyg_cannot_save_are_audited_but_not_trained(change):
    model = Net()
    change(model)
    assert fgai.audit(model, DATA, ATTACK, seeds=1).clean["f1"] > 0
    with pytest.raises(CallError, match=r"cannot load its own state_dict.*remove_parametrizations"):
        fgai.FGAI(epochs=1, adversary=ATTACK).fit(model, DATA)


def test_a_program_of_torchscript_is_refused():
    program: Any = torch.jit.trace(nn.Linear(8, 3), DATA.x)
    with pytest.raises(CallError, match="TorchScript program, without layers"):
        fgai.FGAI(epochs=1, adversary=ATTACK).fit(program, DATA)


def test_a_model_that_cuts_its_gradient_is_refused_with_the_reason():
    class Cut(Net):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index).detach()

    with pytest.raises(NotDifferentiableError, match="detaches its logits, remove that"):
        fgai.audit(Cut(), DATA, ATTACK, seeds=1)
