"""Typed datasets are read from raw files as PyG reads them."""

import numpy as np
import pytest
import torch
from scipy import sparse

from fgai import datasets
from fgai.errors import DataError
from fgai.typed import join
from loose import loose


def write_raw(folder, movies=4, directors=2, actors=3):
    """Files of the form of IMDB: movie i has the director i % 2 and the actor i % 3."""
    folder.mkdir(parents=True)
    size = movies + directors + actors
    links = np.zeros((size, size))
    for movie in range(movies):
        for other in (movies + movie % directors, movies + directors + movie % actors):
            links[movie, other] = links[other, movie] = 1
    sparse.save_npz(folder / "adjM.npz", sparse.csr_matrix(links))
    for number, count in enumerate((movies, directors, actors)):
        sparse.save_npz(folder / f"features_{number}.npz", sparse.csr_matrix(np.eye(count, 5)))
    np.save(folder / "labels.npy", np.arange(movies) % 3)
    parts = {"train_idx": np.array([0]), "val_idx": np.array([1]), "test_idx": np.array([2, 3])}
    np.savez(folder / "train_val_test_idx.npz", allow_pickle=False, **parts)


def test_imdb_is_read_with_its_split_and_class_names(tmp_path, monkeypatch):
    write_raw(tmp_path / "raw" / "IMDB" / "raw")
    monkeypatch.setenv("FGAI_RAW", str(tmp_path / "raw"))
    data = loose(datasets.load("imdb", root=tmp_path / "cache"))
    assert {name: data[name].num_nodes for name in data.node_types} == {"movie": 4, "director": 2, "actor": 3}
    assert data["director", "to", "movie"].edge_index.t().tolist() == [[0, 0], [0, 2], [1, 1], [1, 3]]
    assert data["movie"].test_mask.tolist() == [False, False, True, True]
    assert loose(join(data)).class_names == ["action", "comedy", "drama"]
    assert not list((tmp_path / "cache").rglob("*.pt")), "no pickle stays"
    again = loose(datasets.load("imdb", root=tmp_path / "cache"))
    assert torch.equal(again["actor"].x, data["actor"].x)


def test_files_that_are_not_imdb_are_refused_in_words(tmp_path, monkeypatch):
    write_raw(tmp_path / "raw" / "IMDB" / "raw")
    (tmp_path / "raw" / "IMDB" / "raw" / "labels.npy").write_bytes(b"nothing")
    monkeypatch.setenv("FGAI_RAW", str(tmp_path / "raw"))
    with pytest.raises(DataError, match="files that PyG cannot read"):
        datasets.load("imdb", root=tmp_path / "cache")
