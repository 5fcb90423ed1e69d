"""Schedule of a pipeline: the order in which a stage computes."""

from itertools import pairwise
from typing import NamedTuple


class Action(NamedTuple):
    """Forward or backward pass of one chunk for one micro-batch."""

    back: bool
    chunk: int
    """Number among the chunks of this rank, from the inputs on."""
    number: int
    """Of the micro-batch."""


def stage_schedule(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Action]:
    """Return the actions of a stage in their order.

    That is the interleaved schedule 1F1B of Narayanan et al. 2021, arXiv:2104.04473, section 2.2; with one chunk it is 1F1B. Micro-batches go
    through the chunks in rounds of ``stages`` or more, so that any number of them will do. All stages send and receive in one order.

    >>> [f"{'b' if back else 'f'}{number}" for back, _, number in stage_schedule(0, stages=2, chunks=1, micro_batches=3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    count = max(1, micro_batches // stages)
    ends = [-(-micro_batches * number // count) for number in range(count + 1)]
    rounds = [range(first, last) for first, last in pairwise(ends)]
    forward = [Action(False, chunk, number) for one in rounds for chunk in range(chunks) for number in one]
    backward = [Action(True, chunk, number) for one in rounds for chunk in reversed(range(chunks)) for number in one]
    behind = stages - 1 - stage
    # forward passes that are ahead of backward ones: until the first loss, and while it comes back
    ahead = behind if chunks == 1 else (chunks - 1) * len(rounds[0]) + 2 * behind
    pairs = zip(forward[ahead:], backward)
    return [*forward[:ahead], *(one for pair in pairs for one in pair), *backward[max(0, len(forward) - ahead) :]]
