"""A digest of what a recording holds, by which it is known again under any name and in any file.

Shapes: L samples, C channels.
"""

import hashlib
from typing import Any

import numpy as np

CHUNK = 2**17  # numbers that are hashed at a time, so that mapped files stay on the disk


def content_hash(values: Any) -> str:
    """The sha256 of the shape and the numbers of an array (L, C), read a few rows at a time.

    Two arrays have the same digest if they have the same shape and the same numbers in the same
    places, whatever their dtype and memory layout: all numbers are hashed as float64, which holds
    those of smaller dtypes exactly. All NaNs are one number, and so are 0 and -0.

    Example:
        >>> import numpy as np
        >>> from progmem.data.content_hash import content_hash
        >>> x = np.arange(6, dtype=np.float32).reshape(3, 2)
        >>> content_hash(x) == content_hash(x.astype(np.int16))
        True
        >>> content_hash(x) == content_hash(x[::-1])  # backwards
        False
    """
    shape = tuple(values.shape)
    digest = hashlib.sha256(repr(shape).encode())
    rows = max(1, CHUNK // max(1, int(np.prod(shape[1:]))))
    for start in range(0, shape[0], rows):
        chunk = np.array(values[start : start + rows], dtype="<f8", order="C")
        chunk[np.isnan(chunk)] = np.nan
        chunk += 0.0  # -0 becomes 0
        digest.update(chunk.tobytes())
    return digest.hexdigest()
