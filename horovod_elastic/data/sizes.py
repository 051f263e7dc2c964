"""Division of a mini-batch's samples among the ranks. Pure.

Ranks take equal shares, unless they announce that their GPUs differ. Then each rank takes a share in
proportion to its speed, so that all ranks finish at about the same time (LB-BSP: Chen et al., "Fast
distributed deep learning via worker-adaptive batch sizing", 2018). All ranks compute with the same whole
numbers, so all come to the same sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

_PACE_OF_ONE = 1_000_000


def pace_of(speed: float) -> int:
    """A GPU's speed as a whole number, in millionths; 0 stands for a speed that is not known (0.0)."""
    return round(speed * _PACE_OF_ONE)


def by_pace(samples: int, paces: Sequence[int]) -> list[int]:
    """`samples` divided among ranks of these paces. The first ranks get what does not divide evenly.

    Every rank gets at least one sample. Only if there are fewer samples than ranks, the first ranks get one
    each. A rank whose part would be less than one sample takes one. Other ranks' sizes are less than one
    sample off their paces' part of the rest (largest remainders). If one pace is not known, all paces count
    alike.
    """
    ranks = len(paces)
    if samples <= ranks:
        return [int(rank < samples) for rank in range(ranks)]
    if 0 in paces or min(paces) == max(paces):
        each, more = divmod(samples, ranks)
        return [each + (rank < more) for rank in range(ranks)]
    sizes, shared = [1] * ranks, list(range(ranks))
    left, of_all = samples, sum(paces)
    while len(larger := [rank for rank in shared if paces[rank] * left >= of_all]) < len(shared):
        left -= len(shared) - len(larger)
        shared, of_all = larger, sum(paces[rank] for rank in larger)
    for rank in shared:
        sizes[rank] = paces[rank] * left // of_all
    missing = samples - sum(sizes)
    for rank in sorted(shared, key=lambda rank: -(paces[rank] * left % of_all))[:missing]:
        sizes[rank] += 1
    return sizes


def next_shares(left: int, batch_size: int, paces: Sequence[int]) -> list[int]:
    """The number of samples of each rank in the next mini-batch, if `left` samples are left of the epoch.

    A rank gets `batch_size` samples on average while enough are left. A rest of less than two such
    mini-batches is taken as one or two mini-batches of even size. Every rank gets a sample, unless there are
    fewer samples than ranks. All ranks together never take more than `batch_size` each, but for one case:
    with a batch size of 1, some ranks get 2 in the last mini-batch.
    """
    full = len(paces) * batch_size
    if left >= 2 * full:
        return by_pace(full, paces)
    return by_pace(left if left <= full or batch_size == 1 else (left + 1) // 2, paces)


def steps_left(left: int, ranks: int, batch_size: int) -> int:
    """The number of mini-batches until the end of the epoch, if ranks and batch size stay the same."""
    full = ranks * batch_size
    if batch_size == 1:
        return max(left // full, min(left, 1))
    return -(-left // full)


def shares_of_the_rest(left: int, batch_size: int, paces: Sequence[int]) -> list[int]:
    """The number of samples of each rank in all mini-batches until the end of the epoch."""
    full = len(paces) * batch_size
    whole = max(0, left // full - 1)  # mini-batches that begin with at least two full ones left
    shares = [whole * samples for samples in by_pace(full, paces)]
    left -= whole * full
    while left:
        now = next_shares(left, batch_size, paces)
        shares = [share + more for share, more in zip(shares, now, strict=True)]
        left -= sum(now)
    return shares
