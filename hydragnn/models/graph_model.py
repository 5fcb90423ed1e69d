"""An encoder and its heads: from a normalised batch to a prediction of every target."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.kernels import topology_of
from hydragnn.layers import EdgeInputs, Edges, NodeInputs, States, lengths_and_directions
from hydragnn.models.derivatives import energy_gradient, forces_from, stress_from
from hydragnn.models.description import ModelDescription
from hydragnn.models.encoders import MESSAGE_PASSING, Surroundings
from hydragnn.models.heads import build_head
from hydragnn.models.prediction import Prediction
from hydragnn.models.settings import HeadSettings, RelationalSettings


class GraphModel(nn.Module):
    """Inputs, encoder and one head per target field; everything in normalised units.

    ``build_model`` checks the description; this class trusts it.
    """

    def __init__(self, description: ModelDescription) -> None:
        super().__init__()
        self.description = description
        model, heads, fields = description.model, description.heads, description.fields
        self.relation = model.relation if isinstance(model, RelationalSettings) else None
        self.level = model.level if isinstance(model, RelationalSettings) and model.schedule else None
        inputs = [field for field in description.input_fields if field.name not in (self.relation, self.level)]
        self.node_inputs = NodeInputs(inputs, model.hidden_dim)
        self.edge_inputs = EdgeInputs(inputs)
        surroundings = Surroundings(
            dim=description.dim,
            edge_width=self.edge_inputs.width,
            relations=fields[self.relation].classes if self.relation else 0,
            vectors=any(fields[head.field].parity == "vector" for head in heads),
            statistics=description.statistics,
        )
        self.encoder = MESSAGE_PASSING[model.kind](model, surroundings)
        self.heads = nn.ModuleList(build_head(head, fields[head.field], model, description.dim) for head in heads)

    def forward(self, batch: GraphBatch) -> dict[str, Prediction]:
        """Predictions by field name: every head's field, then its forces and its stress where declared.

        Derivatives are differentiable again where the caller records gradients, and detached where it does not.
        """
        recording = torch.is_grad_enabled()
        if not any(head.forces or head.stress for head in self.description.heads):
            states, edges = self.encode(batch, self.edge_vectors(batch))
            return {
                settings.field: head(states, edges, batch) for settings, head in zip(self.description.heads, self.heads)
            }
        with torch.enable_grad():
            vectors = edge_vectors(batch).detach().requires_grad_()
            states, edges = self.encode(batch, vectors)
            predictions: dict[str, Prediction] = {}
            for settings, head in zip(self.description.heads, self.heads):
                predictions[settings.field] = head(states, edges, batch)
                energy = predictions[settings.field].mean
                predictions |= _derivatives(settings, energy, vectors, batch, differentiable=recording)
        return predictions if recording else {name: _detached(value) for name, value in predictions.items()}

    def edge_vectors(self, batch: GraphBatch) -> Float[Tensor, "edges dim"] | None:
        """Vectors of all edges; None for graphs without geometry."""
        return edge_vectors(batch) if self.description.dim else None

    def encode(self, batch: GraphBatch, vectors: Float[Tensor, "edges dim"] | None) -> tuple[States, Edges]:
        """Final states of all nodes, and the edges that they came along."""
        lengths, directions = (None, None) if vectors is None else lengths_and_directions(vectors)
        edges = Edges(
            topology=topology_of(batch),
            lengths=lengths,
            directions=directions,
            features=self.edge_inputs(batch),
            relation=batch.edges[self.relation] if self.relation else None,
            level=batch.edges[self.level] if self.level else None,
        )
        return self.encoder(self.node_inputs(batch), edges), edges


def _derivatives(
    head: HeadSettings, energy: Tensor, vectors: Tensor, batch: GraphBatch, *, differentiable: bool
) -> dict[str, Prediction]:
    if not (head.forces or head.stress):
        return {}
    gradient = energy_gradient(energy, vectors, differentiable=differentiable)
    found: dict[str, Prediction] = {}
    if head.forces:
        found[head.forces] = Prediction(mean=forces_from(gradient, batch))
    if head.stress:
        found[head.stress] = Prediction(mean=stress_from(gradient, vectors, batch))
    return found


def _detached(prediction: Prediction) -> Prediction:
    variance = prediction.variance
    return Prediction(mean=prediction.mean.detach(), variance=None if variance is None else variance.detach())
