"""Options of the task `kge` that a job leaves out, chosen by the size of the graph, the model and `dim`.

Candidates. 1-vs-all where the run is estimated at `AFFORDABLE` seconds of one core or less; else a sampled
softmax with log-Q correction, whose negatives cost at most as much.

Regularisation. N3 as in Lacroix, Usunier and Obozinski ("Canonical Tensor Decomposition for Knowledge Base
Completion", ICML 2018), stronger for graphs with few triples per entity. Dropout of queries only where rows
are long and most entities have several triples: short rows have no values to spare, and a row that few
triples determine does not get the same values twice.

Epochs. More for sparse graphs, whose rows get few gradients in each: twice as many as `SPARSE_EPOCHS` begins
with, as long as the run stays affordable. And so many for small graphs that the run has `FEWEST_STEPS` steps.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

Chosen: TypeAlias = dict[str, Any]

AFFORDABLE = (
    2400.0  # seconds of one core that a run against all entities may take: 20 minutes of two cores
)
# Nanoseconds of one core for a query and a candidate: passes over scores, and products of rows by value.
SCORE_NS, VALUE_NS = 6.0, 0.12
SPARSE = 4.0  # triples per entity, below which a graph is sparse
LONG = 128  # values of a row from which dropout and strong N3 help
EPOCHS = 40  # of a graph that is not sparse
SPARSE_EPOCHS = (50, 100)  # fewest and most of a sparse one
FEWEST_STEPS = 4000  # steps of a run with one worker
MOST_EPOCHS = 400
NEGATIVES = (512, 4096)  # fewest and most negatives that are chosen


class GraphSize(NamedTuple):
    """The size of a graph.

    Attributes:
        entities: Number of entities.
        triples: Number of distinct triples of the training file.
    """

    entities: int
    triples: int


def core_seconds(graph: GraphSize, dim: int, epochs: int, candidates: int) -> float:
    """Return an estimate of the seconds that the products and the softmax of a run take on one core."""
    pairs = 2.0 * graph.triples * candidates * epochs
    return pairs * (SCORE_NS + VALUE_NS * dim) * 1e-9


def choose(graph: GraphSize, dim: int, products: bool, softmax: bool) -> Chosen:
    """Return the values for a graph by their dotted names.

    Args:
        graph: Its size.
        dim: Values of an entity's row.
        products: Scores are products (complex, distmult), not distances.
        softmax: The loss is softmax.
    """
    sparse = graph.triples < SPARSE * graph.entities
    batch_size = 128
    steps = math.ceil(graph.triples / batch_size)
    usual = EPOCHS
    if sparse:
        usual = _sparse_epochs(graph, dim) if softmax else SPARSE_EPOCHS[0]
    epochs = max(usual, min(math.ceil(FEWEST_STEPS / steps), MOST_EPOCHS))
    found: Chosen = {
        "graph.entities": graph.entities,
        "graph.triples": graph.triples,
        "train.epochs": epochs,
        "train.batch_size": batch_size,
    }
    if products:
        strong = 0.1 if dim >= LONG else 0.05
        found["options.n3"] = strong if sparse else 0.01
        found["options.dropout"] = 0.0 if sparse or dim < LONG else 0.3
    if softmax:
        found["options.negatives"] = _negatives(graph, dim, epochs)
        found["options.correction"] = found["options.negatives"] > 0
    return found


def _sparse_epochs(graph: GraphSize, dim: int) -> int:
    """Return the number of epochs of a sparse graph, so many as are affordable with its candidates."""
    fewest, most = SPARSE_EPOCHS
    candidates = graph.entities
    if core_seconds(graph, dim, fewest, candidates) > AFFORDABLE:
        candidates = min(candidates, NEGATIVES[1])
    fitting = int(AFFORDABLE / core_seconds(graph, dim, 1, candidates))
    return min(max(fitting, fewest), most)


def _negatives(graph: GraphSize, dim: int, epochs: int) -> int:
    """Return the number of negatives of a softmax; 0: all entities are candidates."""
    cost = core_seconds(graph, dim, epochs, graph.entities)
    fewest, most = NEGATIVES
    if cost <= AFFORDABLE or graph.entities <= fewest:
        return 0
    affordable = graph.entities * AFFORDABLE / cost
    # A power of 2, so that nearly equal graphs have equal numbers.
    fitting: int = 1 << math.floor(math.log2(max(affordable, fewest)))
    return min(fitting, most)


def reason(dim: int, chosen: Chosen) -> str:
    """Return why values were chosen, in words, for the output at start and the summary."""
    graph = GraphSize(chosen["graph.entities"], chosen["graph.triples"])
    per = graph.triples / graph.entities
    kind = "few" if graph.triples < SPARSE * graph.entities else "many"
    text = f"{graph.entities:,} entities, {kind} triples for each ({per:.1f}), dim {dim}"
    negatives = chosen.get("options.negatives")
    if negatives is None:
        return text
    minutes = core_seconds(graph, dim, chosen["train.epochs"], graph.entities) / 120
    verdict = "affordable" if negatives == 0 else "too long"
    shown = f"about {minutes:,.0f} min" if minutes >= 1 else "less than a minute"
    return f"{text}; 1-vs-all takes {shown} on two cores: {verdict}"
