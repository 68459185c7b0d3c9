"""Which of the training rows are kept back for validation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ..core.errors import DataError

SPLIT = b"fedloom validation rows\n"


def validation_rows(ids: Iterable[object], share: float) -> npt.NDArray[np.bool_]:
    """A mask over the ids of training rows, in any order: the share with the smallest hashes. Who
    knows the ids knows the rows, without a message and whatever the seed."""
    texts = [str(id) for id in ids]
    count = max(1, round(share * len(texts)))
    if count >= len(texts):
        raise DataError(
            f"validation = {share:g} of {len(texts)} training rows leaves none to train on"
        )
    digests = [hashlib.sha256(SPLIT + text.encode()).digest() for text in texts]
    mask = np.zeros(len(texts), dtype=bool)
    mask[sorted(range(len(texts)), key=digests.__getitem__)[:count]] = True
    return mask
