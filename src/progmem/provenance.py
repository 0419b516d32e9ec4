"""What a network has seen, kept inside the model, so that scores on it can be refused or marked.

A series is known by a digest of what it holds (`content_hash`), so names, files and folders do not
matter. One that was changed in any sample is another series. A piece of a recording is known by the
recording too, and by its place there: labels of a piece are learnt for whatever shares samples with
it. A piece that was cut before progmem has read it is another series.

Shapes: R series, P pieces, L samples, C channels.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from progmem.artifact import noted
from progmem.data.content_hash import content_hash
from progmem.data.dates import COVARIATES
from progmem.data.recordings import Recording, without_covariates
from progmem.data.splits import same_rows
from progmem.errors import ArtifactError, InputError

DIGITS = 16  # of a digest: among a million series, two agree by chance once in 37 million times
NONE = np.empty(0, dtype=np.uint64)
NO_PIECES = np.empty((0, 3), dtype=np.uint64)


class TrainedOn(NamedTuple):
    """One training of a network: the series it saw, and those whose labels it learnt."""

    name: str = ""  # of the file, folder or data set
    split: str = ""  # of a data set
    rows: np.ndarray = NONE  # digests; none are known of trainings by version 0.1.0
    labelled: np.ndarray = NONE
    with_labels: bool = False
    pieces: np.ndarray = NO_PIECES  # (P, 3) of recordings whose labels were learnt, as `places` has

    @classmethod
    def of(
        cls,
        rows: np.ndarray,
        source: Mapping[str, Any],
        *,
        labelled: np.ndarray | None = None,
        pieces: np.ndarray = NO_PIECES,
    ) -> "TrainedOn":
        """A training on the series with these digests, of ``labelled`` with their labels."""
        name, split = (str(source.get(key, "")) for key in ("name", "split"))
        learnt = NONE if labelled is None else np.unique(labelled)
        return cls(name, split, np.unique(rows), learnt, labelled is not None, pieces)

    def to_note(self) -> dict[str, Any]:
        """For the note of a model."""
        return {
            "name": self.name, "split": self.split, "with_labels": self.with_labels,
            "rows": pack(self.rows), "labelled": pack(self.labelled), "pieces": pack(self.pieces),
        }  # fmt: skip

    @classmethod
    def from_note(cls, note: Any, where: object) -> "TrainedOn":
        """What `to_note` made."""
        if not isinstance(note, Mapping):
            raise ArtifactError(f"{where}: a training in its note is {str(note)[:60]!r}")
        name, split = (noted(note, key, str, where) for key in ("name", "split"))
        rows, labelled = (unpack(note, key, where) for key in ("rows", "labelled"))
        pieces = unpack(note, "pieces", where) if "pieces" in note else NONE
        if len(pieces) % 3:
            raise ArtifactError(f"{where}: pieces in its note holds no pieces of recordings")
        with_labels = noted(note, "with_labels", bool, where)
        return cls(name, split, rows, labelled, with_labels, pieces.reshape(-1, 3))


History = tuple[TrainedOn, ...]  # trainings of a network, the first one first


class Seen(NamedTuple):
    """What a network knows of some series."""

    rows: np.ndarray  # (R,) bool, whether it was trained on them
    labels: np.ndarray  # (R,) bool, whether it learnt their labels


def digests_of(recordings: Sequence[Recording]) -> np.ndarray:
    """Digests (R,) of the samples of recordings, without the calendar that reading may add."""
    return digests([recording.values for recording in without_covariates(recordings)])


def digests(series: Iterable[Any]) -> np.ndarray:
    """Digests (R,) of series (L_i, C)."""
    return np.array([int(content_hash(values)[:DIGITS], 16) for values in series], dtype=np.uint64)


def places(recordings: Sequence[Recording]) -> np.ndarray:
    """Digest of the whole recording, and first and last sample of it, of each of these, (R, 3)."""
    known: dict[int, int] = {}  # digests of wholes, which pieces share
    found = np.empty((len(recordings), 3), dtype=np.uint64)
    for i, (one, bare) in enumerate(zip(recordings, without_covariates(recordings), strict=True)):
        whole, start = (bare.values, 0) if one.whole is None else (one.whole, one.start)
        if id(whole) not in known:
            width = bare.values.shape[1]  # a calendar comes before the other channels
            (known[id(whole)],) = digests([whole[:, whole.shape[1] - width :]])
        found[i] = known[id(whole)], start, start + len(bare.values)
    return found


def pieces_of(recordings: Sequence[Recording]) -> np.ndarray:
    """The `places` of those that were cut from a recording, (P, 3)."""
    return places([one for one in recordings if one.whole is not None])


def history_of(encoder: Any) -> History:
    """The trainings of an encoder; an encoder that keeps no account of any has had none."""
    return getattr(encoder, "history", None) or ()


def seen_by(encoder: Any, series: Sequence[Any]) -> Seen:
    """What an encoder knows of series (L_i, C), with the calendar if it was trained with one."""
    history = history_of(encoder)
    if not history:
        return Seen(*np.zeros((2, len(series)), dtype=bool))
    first = len(COVARIATES) if encoder.info.has_calendar else 0
    return seen_in(history, digests([values[:, first:] for values in series]))


def seen_in(history: History, digests: np.ndarray) -> Seen:
    """What a network with this history knows of the series with these digests (R,)."""
    return Seen(
        _in_any([training.rows for training in history], digests),
        _in_any([training.labelled for training in history], digests),
    )


def seen_of(history: History, recordings: Sequence[Recording]) -> Seen:
    """What a network with this history knows of recordings, and of whatever they are pieces of."""
    if not history:
        return Seen(*np.zeros((2, len(recordings)), dtype=bool))
    where = places(recordings)
    digests, cut = where[:, 0].copy(), [one.whole is not None for one in recordings]
    digests[cut] = digests_of([one for one in recordings if one.whole is not None])
    own, whole = (seen_in(history, found) for found in (digests, where[:, 0]))
    learnt = np.concatenate([NO_PIECES, *(training.pieces for training in history)])
    shared = [
        bool(((learnt[:, 0] == digest) & (learnt[:, 1] < end) & (start < learnt[:, 2])).any())
        for digest, start, end in where
    ]
    labels = own.labels | whole.labels | np.array(shared, dtype=bool)
    return Seen(own.rows | whole.rows, labels)


def labels_learnt(history: History, name: str, digests: np.ndarray) -> np.ndarray:
    """Which series (R,) of the set ``name`` a network has learnt the labels of.

    All, if version 0.1.0 trained it on labels of that set.
    """
    if any(t.with_labels and not len(t.rows) and t.name == name for t in history):
        return np.ones(len(digests), dtype=bool)
    return seen_in(history, digests).labels


def check_test_series(
    history: History, train: np.ndarray, test: np.ndarray, *, name: str, split: str
) -> None:
    """Refuse a network that has seen test series of the set ``name`` by its ``split``.

    Some sets hold a series in both parts; one that may be trained on does not count.
    """
    for training in history:
        leaked = _in_any([training.rows], test) & ~np.isin(test, train)
        unknown = not len(training.rows) and training.name == name
        if leaked.any() or (unknown and not same_rows(name, training.split, split)):
            of = f"the {training.split} split of " if training.split else ""
            many = f"{leaked.sum()} of the {len(test)} series" if leaked.any() else "series"
            raise InputError(
                f"the model was trained on {of}{training.name or 'series'} and has seen {many} "
                f"that the {split} split of {name} tests on; train on {name} with --split {split}"
            )


def check_labels_unseen(known: np.ndarray, what: str, *, allow: bool) -> int:
    """How many of ``known`` (R,) are True; refused unless ``allow``, for which scores are marked.

    ``what`` they are is said in the message.
    """
    count = int(known.sum())
    if count and not allow:
        raise InputError(
            f"the model was trained with the labels of {count} of the {len(known)} {what}: a score "
            "on them says nothing about others. Take other series or the model before that "
            "training, or --allow-seen-labels (allow_seen_labels=True), by which scores are marked"
        )
    return count


def digest_of(digests: np.ndarray) -> str:
    """One digest of several, in their order."""
    return hashlib.sha256(digests.astype("<u8").tobytes()).hexdigest()


def pack(digests: np.ndarray) -> str:
    """Digests as a text for a note."""
    return base64.b64encode(digests.astype("<u8").tobytes()).decode()


def unpack(note: Mapping[str, Any], name: str, where: object) -> np.ndarray:
    """The digests that ``note`` has under ``name``."""
    try:
        packed = base64.b64decode(noted(note, name, str, where), validate=True)
        return np.frombuffer(packed, "<u8").astype(np.uint64)
    except ValueError as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{where}: {name} in its note holds no digests") from error


def _in_any(known: Sequence[np.ndarray], digests: np.ndarray) -> np.ndarray:
    return np.isin(digests, np.concatenate([NONE, *known]))
