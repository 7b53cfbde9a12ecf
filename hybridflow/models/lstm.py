"""A language model of LSTM layers."""

from __future__ import annotations

from typing import Any

from hybridflow import nn
from hybridflow.core.tensor import Tensor


class LSTMLanguageModel(nn.Module):
    """A language model: embeddings, LSTM layers with dropout between them, and a linear layer to the tokens.

    Args:
        tokens: the number of tokens.
        width: the size of embeddings.
        hidden: the size of the layers' states.
        layers: the number of LSTM layers.
        dropout: the probability that a number between layers is dropped in training mode.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.models.LSTMLanguageModel(tokens=10, width=4, hidden=8, layers=2).eval()
        >>> logits, state = model(hf.asarray([[1, 2, 3]]))
        >>> logits.shape
        (1, 3, 10)
        >>> more, state = model(hf.asarray([[4]]), state)  # goes on with the text

    Reference:
        Zaremba et al., "Recurrent neural network regularization", 2014; the default is its medium size.
    """

    def __init__(
        self, *, tokens: int = 10000, width: int = 650, hidden: int = 650, layers: int = 2, dropout: float = 0.5
    ) -> None:
        self.tokens, self.drop = nn.Embedding(tokens, width), nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, hidden, layers=layers, dropout=dropout)
        self.head = nn.Linear(hidden, tokens)

    def forward(self, ids: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Return logits ``(batch, length, tokens)`` of integer ids ``(batch, length)``, and the state after them.

        Args:
            ids: the tokens.
            state: the state after the tokens before; zeros if not given.
        """
        y, state = self.lstm(self.drop(self.tokens(ids)), state)
        return self.head(self.drop(y)), state
