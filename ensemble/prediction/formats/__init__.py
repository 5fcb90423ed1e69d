"""Files of predictions, one class per format."""

from hydragnn.ensemble.prediction.formats.sink import Block, Heading, Piece, Sink
