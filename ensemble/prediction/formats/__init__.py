"""Files of predictions, one class per format."""

from hydragnn.ensemble.prediction.formats.sink import Block, Heading, Piece, Sink
from hydragnn.ensemble.prediction.formats.suffixes import FORMATS, check_absent, sink_for
