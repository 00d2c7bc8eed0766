"""[options] of the task `kge`, and the values that models choose for those that a job leaves out."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mpips.tasks.kge_models import ComplEx, DistMult, EmbeddingModel, RotatE, TransE
from mpips.tasks.options import Count, Penalty, Rate

Loss = Literal["auto", "softmax", "logistic"]

# Entities up to which all of them are candidates in training (1-vs-all) if a job sets no number of negatives.
MOST_CANDIDATES = 20_000


class KgeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[options] of the task `kge`."""

    model: Annotated[
        Literal["complex", "distmult", "rotate", "transe"],
        Meta(description="Score of a triple."),
    ] = "complex"
    dim: Annotated[
        Annotated[int, Meta(ge=2)],
        Meta(
            description="Values of an entity's row. complex, rotate: twice the number of complex numbers."
        ),
    ] = 512
    reciprocals: Annotated[
        bool,
        Meta(
            description="Each relation has a second row for the direction from tail to head; otherwise both "
            "directions share one."
        ),
    ] = True
    loss: Annotated[
        Loss,
        Meta(
            description="softmax: cross-entropy. logistic: each candidate alone. auto: softmax for complex "
            "and distmult, logistic for rotate and transe."
        ),
    ] = "auto"
    negatives: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="Negatives that all triples of a batch share, drawn uniformly with replacement. "
            "0: all entities are candidates (1-vs-all; softmax only). By default 0 with softmax and up to "
            "20,000 entities, else 256."
        ),
    ] = None
    temperature: Annotated[
        Penalty,
        Meta(
            description="logistic: weight of hard negatives (self-adversarial); 0: all weigh the same."
        ),
    ] = 1.0
    margin: Annotated[
        float | None,
        Meta(
            description="logistic: added to every score. By default 4 for transe, 6 for rotate, else 0."
        ),
    ] = None
    norm: Annotated[
        Literal[1, 2], Meta(description="transe: 1: Manhattan distance. 2: Euclidean.")
    ] = 2
    n3: Annotated[
        Penalty | None,
        Meta(
            description="The loss of a triple has n3 times the sum of the cubed absolute values of its three "
            "rows added. By default 0.01 for complex and distmult, else 0."
        ),
    ] = None
    dropout: Annotated[
        Annotated[float, Meta(ge=0, lt=1)] | None,
        Meta(
            description="Share of the values of a query that are 0 in a step. By default 0.3 for complex and "
            "distmult, else 0."
        ),
    ] = None
    learning_rate: Annotated[Rate, Meta(description="Learning rate of Adagrad.")] = 0.1
    init_std: Annotated[
        Rate | None,
        Meta(
            description="Standard deviation of the initial rows. By default 0.001 for complex and distmult, "
            "else 0.1. Angles of rotate are uniform."
        ),
    ] = None
    known: Annotated[
        tuple[str, ...],
        Meta(
            description="Files, or patterns, of further true triples, which filtered ranks leave out beside "
            "those of the training file and of the evaluated file."
        ),
    ] = ()
    top: Annotated[
        Count, Meta(description="mpips predict: answers to a question such as `Q1 P2 ?`.")
    ] = 10

    def idle(self) -> dict[str, str]:
        """Return why an option has no effect beside the others, by its name."""
        found = {}
        if self.model != "transe":
            found["norm"] = f"it applies only to transe, options.model is {self.model}"
        if self.resolved(1).loss == "softmax":
            why = "it applies only to the loss logistic, that of this job is softmax"
            found |= {"temperature": why, "margin": why}
        return found

    def embedding_model(self) -> EmbeddingModel:
        """Return the model."""
        if self.model == "transe":
            return TransE(self.norm)
        kinds: dict[str, type[ComplEx] | type[DistMult] | type[RotatE]] = {
            "complex": ComplEx,
            "distmult": DistMult,
            "rotate": RotatE,
        }
        return kinds[self.model]()

    def resolved(self, n_entities: int) -> KgeOptions:
        """Return the options with the values that the model chooses in place of None and "auto"."""
        products = self.model in ("complex", "distmult")
        loss = self.loss if self.loss != "auto" else ("softmax" if products else "logistic")
        all_fit = loss == "softmax" and n_entities <= MOST_CANDIDATES
        chosen = {
            "negatives": 0 if all_fit else 256,
            "margin": {"transe": 4.0, "rotate": 6.0}.get(self.model, 0.0),
            "n3": 0.01 if products else 0.0,
            "dropout": 0.3 if products else 0.0,
            "init_std": 1e-3 if products else 0.1,
        }
        missing = {name: v for name, v in chosen.items() if getattr(self, name) is None}
        return msgspec.structs.replace(self, loss=loss, **missing)
