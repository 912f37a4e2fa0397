"""Log the metrics of finished cells to MLflow or TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from fgai.errors import MissingExtraError
from fgai.registry import Registry

Track = Callable[[str, Mapping[str, float], int], None]  # run, metrics by name, step
TRACKERS: Registry[Callable[[Path], Track]] = Registry("tracker")


def tracker(where: str) -> Track:
    """Open a tracker.

    Args:
        where: `mlflow:FILE`, a SQLite file for `mlflow ui`, or `tensorboard:FOLDER`.

    Returns:
        A function that logs the metrics of a run at a step.

    >>> tracker("paper:notes")
    Traceback (most recent call last):
    fgai.errors.UnknownNameError: no tracker is called 'paper'; Registered: mlflow, tensorboard
    """
    name, _, path = where.partition(":")
    return TRACKERS[name](Path(path or name))


@TRACKERS.register("mlflow")
def _mlflow(file: Path) -> Track:
    """MLflow's SQLite store: one run per name in the experiment `fgai`.

    >>> _mlflow(Path("runs.db"))("cora-gat-at-0", {"f1": 0.8}, 1)  # doctest: +SKIP
    """
    try:
        from mlflow.tracking import MlflowClient  # pyright: ignore[reportMissingImports], an extra
    except ImportError as error:
        raise MissingExtraError(f"tracking to {file} needs MLflow; pip install 'fgai[track]'") from error
    client = MlflowClient(tracking_uri=f"sqlite:///{file}")
    existing = client.get_experiment_by_name("fgai")
    experiment = client.create_experiment("fgai") if existing is None else existing.experiment_id
    runs: dict[str, str] = {}

    def track(run: str, metrics: Mapping[str, float], step: int) -> None:
        if run not in runs:
            runs[run] = client.create_run(experiment, run_name=run).info.run_id
        for name, value in metrics.items():
            client.log_metric(runs[run], name, value, step=step)
        client.set_terminated(runs[run])

    return track


@TRACKERS.register("tensorboard")
def _tensorboard(folder: Path) -> Track:
    """TensorBoard's event files: one folder per run.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _tensorboard(Path(folder))("cora-gat-at-0", {"f1": 0.8}, 1)
    ...     [run.name for run in Path(folder).iterdir()]
    ['cora-gat-at-0']
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError(f"tracking to {folder} needs TensorBoard; pip install 'fgai[track]'") from error

    def track(run: str, metrics: Mapping[str, float], step: int) -> None:
        with SummaryWriter(str(folder / run)) as writer:
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)

    return track
