"""`mpips export`: write a trained model for other libraries."""

from __future__ import annotations

from pathlib import Path

import click

from mpips.cli.choosing import best_option, find_model, model_argument, say_better
from mpips.cli.runs import folder_option
from mpips.terminal.screen import say


@click.command(short_help="Write a trained model for other libraries.")
@model_argument
@click.option(
    "--format",
    "kind",
    type=click.Choice(
        ["npz", "safetensors", "parquet", "torch", "onnx", "word2vec", "word2vec-binary"]
    ),
    required=True,
    help="Form of the file.",
)
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="File to write; a folder for parquet.",
)
@click.option(
    "--force", is_flag=True, help="Replace an existing file, or a folder of an earlier export."
)
@best_option
@folder_option
def command(model: str, kind: str, out: Path, force: bool, best: bool, folder: str) -> None:
    """Write a model that `mpips train` or `mpips run` has trained for other libraries.

    MODEL is a checkpoint, or a folder of checkpoints, a run directory or the beginning of a run's name, of
    which the newest good checkpoint is taken. `mpips ckpt export` writes the tables of any checkpoint, with
    the state of the optimizers.

    \b
    npz          tables, moments of the features, labels and columns, for NumPy
    safetensors  of models of rows of numbers the state dict of torch below; of others tables and
                 moments of the features. Labels, columns, task and step are JSON in its metadata
    parquet      a file for each table: key and columns, or row and columns of a dense table
    torch        softmax, mlp, logistic, fm, wide_deep, deepfm, dcnv2: a state dict, which
                 torch.load(weights_only=True) reads, the source of its nn.Module in a file with
                 ending .py, and OUT.json, from which its inputs are made; neither needs mpips.
                 Other tasks: the tables as tensors
    onnx         softmax, mlp, logistic, fm, wide_deep, deepfm, dcnv2: a graph that scales raw numbers
                 itself, and OUT.json, from which any language makes its inputs
    word2vec, word2vec-binary
                 vectors of the task word2vec, as text or binary, which gensim and others read:
                 KeyedVectors.load_word2vec_format(FILE, binary=False or True)
    """
    from mpips.inference.exporting import export
    from mpips.inference.loading import load

    path = find_model(model, folder)
    loaded = load(path, best=best)
    if not best:
        say_better(path, loaded.path)
    written = export(loaded, kind, out, force)
    say(f"mpips export: {loaded.path} in {written}")
