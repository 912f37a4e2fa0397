"""A model that Lightning's Trainer has trained, made faithful from the same batches.

pip install 'fgai[lightning]' && python examples/with_lightning.py
"""

import lightning  # pyright: ignore[reportMissingImports], an extra
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.nn.models import GAT

import fgai
from fgai.large import Loader, audit_batches, full_neighbour_loader


class Classifier(lightning.LightningModule):
    """Any PyG model; a batch is about its first `batch_size` nodes."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Data, _: int) -> torch.Tensor:
        """Cross-entropy of the seeds."""
        logits = self.model(batch.x, batch.edge_index)[: batch.batch_size]
        return cross_entropy(logits, batch["y"][: batch.batch_size])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, as in the paper."""
        return torch.optim.Adam(self.parameters(), 0.01, weight_decay=5e-4)


def main(dataset: str = "cora", epochs: int = 30) -> None:
    data = fgai.datasets.load(dataset, seed=0)
    model = GAT(data.num_features, 32, num_layers=2, out_channels=int(data["y"].max()) + 1, heads=4, dropout=0.6)
    loader = Loader(data, (10, 10), batch=256, seed_nodes=data.train_mask)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    lightning.Trainer(max_epochs=epochs, accelerator="cpu", devices=1, **quiet).fit(Classifier(model), loader)

    attack = fgai.NodeInjection(nodes=20, edges=20, steps=1, step=0.3)
    faithful = fgai.FGAI(adversary=attack, epochs=epochs).fit(model, Loader(data, (10, 10), batch=1024)).model
    for name, one in {"trained by Lightning": model, "made faithful": faithful}.items():
        report = audit_batches(one, full_neighbour_loader(data, hops=2), seeds=1)
        print(f"{name}: F1 {report.clean['f1']:.3f}, under attack {report.attacked['f1'].mean:.3f}")


if __name__ == "__main__":
    main()
