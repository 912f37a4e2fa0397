"""`fgai convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fgai.cli.options import parse_pairs
from fgai.errors import DataError, SettingError
from fgai.files import try_output


def convert(
    graph: Annotated[
        str,
        typer.Argument(
            help="A dataset, module:function, or edges: Parquet, CSV, text with two ids a line (a file, a folder, a "
            "pattern, a URL), or .npy."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    ends: Annotated[str, typer.Option(help="Columns of source and target, such as payer,payee; the first two.")] = "",
    edge_column: Annotated[
        list[str] | None, typer.Option(help="Columns of an edge attribute, such as edge_attr=amount,time.")
    ] = None,
    node_table: Annotated[str, typer.Option(help="A table with a row per node: Parquet or CSV.")] = "",
    node_id: Annotated[str, typer.Option(help="Its column of ids; the first one by default.")] = "",
    node_column: Annotated[
        list[str] | None, typer.Option(help="Columns of a node attribute, such as x=age,income or y=label.")
    ] = None,
    map_ids: Annotated[bool, typer.Option("--map-ids", help="Number integer ids anew, in their order.")] = False,
    array: Annotated[list[str] | None, typer.Option(help="name=file.npy with one row per node, for files.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Number of nodes, for files.")] = None,
    split: Annotated[int, typer.Option(help="Seed of the split, for a dataset.")] = 0,
    backbone: Annotated[str, typer.Option(help="Also write the inputs that this backbone needs, as gt does.")] = "",
) -> None:
    """Write a graph to disk, for graphs larger than memory."""
    from fgai.backbones import BACKBONES
    from fgai.cli.loading import load_graph
    from fgai.large import convert as convert_graph
    from fgai.large import convert_arrays, convert_tables

    if out.exists():
        raise DataError(f"{out} exists already; give a new folder, or remove that one")
    try_output(out, folder=True)
    arrays = parse_pairs("--array", array, "x=features.npy")
    of_tables = {"--ends": ends, "--edge-column": edge_column, "--node-table": node_table, "--node-id": node_id}
    of_tables |= {"--node-column": node_column, "--map-ids": map_ids}
    of_files = {"--array": array, "--nodes": nodes is not None}
    of_datasets = {"--split": split, "--backbone": backbone}
    if Path(graph).is_file() and graph.endswith(".npy"):
        _refuse(of_tables | of_datasets, f"{graph} is an array of edges")
        store = convert_arrays(graph, out, arrays, nodes)
    elif Path(graph).exists() or "://" in graph or any(mark in graph for mark in "*?["):
        _refuse(of_datasets, f"{graph} is a table")
        store = convert_tables(
            graph,
            out,
            ends=ends.split(",") if ends else (),
            edge_columns=_parse_columns("--edge-column", edge_column, "edge_attr=amount,time"),
            node_table=node_table or None,
            node_id=node_id,
            node_columns=_parse_columns("--node-column", node_column, "x=age,income"),
            arrays=arrays,
            nodes=nodes,
            map_ids=map_ids,
        )
    else:
        _refuse(of_tables | of_files, f"{graph} is a dataset or a function")
        data = load_graph(graph, split)
        data = BACKBONES[backbone].prepare(data) if backbone else data
        store = convert_graph(data, out, origin={"data": graph, "seed": split})
    names = ", ".join([*store.names, *store.edge_names])
    typer.echo(f"{store.num_nodes:,} nodes and {store.num_edges:,} edges{names and f' with {names}'} in {out}")


def _refuse(given: dict[str, Any], what: str) -> None:
    """Refuse options that another kind of graph has."""
    if wrong := [option for option, value in given.items() if value]:
        raise SettingError(f"{what}, which has no {', '.join(wrong)}; omit it")


def _parse_columns(option: str, given: list[str] | None, example: str) -> dict[str, list[str]]:
    """Return the columns of each attribute."""
    return {name: columns.split(",") for name, columns in parse_pairs(option, given, example).items()}
