"""[options] of the task `kge`, and the values that models choose for those that a job leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mpips.tasks.kge_models import ComplEx, DistMult, EmbeddingModel, RotatE, TransE
from mpips.tasks.options import Count, Penalty, Rate

Loss = Literal["auto", "softmax", "logistic"]

# Entities up to which all are candidates in training (1-vs-all) in runs of versions that do not choose.
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
            "0: all entities are candidates (1-vs-all; softmax only). By default chosen by the size of the "
            "graph and dim with softmax, else 256."
        ),
    ] = None
    correction: Annotated[
        bool | None,
        Meta(
            description="softmax with negatives: each drawn entity counts for as many as it stands for "
            "(log-Q correction), so that the loss estimates that against all entities. By default true where "
            "the number of negatives is chosen, false where options.negatives is given."
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
            "rows added. By default chosen by the size of the graph and dim for complex and distmult, else 0."
        ),
    ] = None
    dropout: Annotated[
        Annotated[float, Meta(ge=0, lt=1)] | None,
        Meta(
            description="Share of the values of a query that are 0 in a step. By default chosen by the size "
            "of the graph and dim for complex and distmult, else 0."
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
        if self.loss_of_model() == "softmax":
            why = "it applies only to the loss logistic, that of this job is softmax"
            found |= {"temperature": why, "margin": why}
        else:
            found["correction"] = (
                "it applies only to the loss softmax, that of this job is logistic"
            )
        if self.negatives == 0:
            found["correction"] = "options.negatives = 0: all entities are candidates"
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

    def resolved(self, n_entities: int, chosen: Mapping[str, Any] | None = None) -> KgeOptions:
        """Return the options with values in place of None and "auto".

        Args:
            n_entities: Number of entities.
            chosen: The values that were chosen for the graph, by dotted names (`mpips.tasks.kge_choice`).
                None or {}: a run of an earlier version, which chose by the model and n_entities alone.
        """
        loss = self.loss_of_model()
        all_fit = loss == "softmax" and n_entities <= MOST_CANDIDATES
        values = {
            "negatives": 0 if all_fit else 256,
            "margin": {"transe": 4.0, "rotate": 6.0}.get(self.model, 0.0),
            "n3": 0.01 if self.has_products() else 0.0,
            "dropout": 0.3 if self.has_products() else 0.0,
            "init_std": 1e-3 if self.has_products() else 0.1,
            "correction": False,
        }
        for name, value in (chosen or {}).items():
            section, _, option = name.partition(".")
            # Runs with negatives of their own have the loss that they always had.
            if section == "options" and (option != "correction" or self.negatives is None):
                values[option] = value
        missing = {name: v for name, v in values.items() if getattr(self, name) is None}
        return msgspec.structs.replace(self, loss=loss, **missing)

    def has_products(self) -> bool:
        """Return True if scores are products, not distances."""
        return self.model in ("complex", "distmult")

    def loss_of_model(self) -> Loss:
        """Return the loss, that of the model for "auto"."""
        if self.loss != "auto":
            return self.loss
        return "softmax" if self.has_products() else "logistic"
