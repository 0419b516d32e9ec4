"""Archives as their publishers give them out, written from arrays."""

import io
import zipfile
from pathlib import PurePosixPath

from progmem.data.converters.epilepsy import recording_names
from progmem.data.converters.har import CHANNELS


def zipped(path, texts, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression, compresslevel=1) as packed:
        for name, text in texts.items():
            packed.writestr(name, text)
    return path


def nested(path, inner):
    """A zip in a zip, with what macOS leaves beside it, as UCI serves them now."""
    return zipped(path, {"UCI HAR Dataset.names": "see inside", "UCI HAR Dataset.zip": inner,
                         "__MACOSX/._UCI HAR Dataset.zip": "x"})  # fmt: skip


def rows_text(values, form="%16.7e", end="\n"):
    return "".join("".join(form % v for v in row) + end for row in values)


def exponents_of_three_digits(text):
    """The signals were printed on Windows: 1.8085150e-004."""
    return text.replace("e-0", "e-00").replace("e+0", "e+00")


def har_texts(arrays, top="UCI HAR Dataset/"):
    labels = "".join(f"{i} {name}\n" for i, name in enumerate(arrays["classes"], 1))
    texts = {f"{top}activity_labels.txt": labels, f"{top}README.txt": "Human Activity"}
    for part in ("train", "test"):
        texts[f"{top}{part}/X_{part}.txt"] = " 1.0 2.0\n"  # features, which are not read
        texts[f"{top}{part}/y_{part}.txt"] = "".join(f"{y + 1}\n" for y in arrays[f"y_{part}"])
        texts[f"{top}{part}/subject_{part}.txt"] = "".join(
            f"{s}\n" for s in arrays[f"subject_{part}"]
        )
        for i, channel in enumerate(CHANNELS):
            text = exponents_of_three_digits(rows_text(arrays[f"X_{part}"][:, :, i].tolist()))
            texts[f"{top}{part}/Inertial Signals/{channel}_{part}.txt"] = text
    return texts


def har_zip(path, arrays, **changed):
    return zipped(path, har_texts(arrays) | changed)


def zip_bytes(texts, compression=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    zipped(file, texts, compression)
    return file.getvalue()


def epilepsy_csv(x, y, recording, chunk):
    """data.csv, byte for byte as R wrote it."""
    names = recording_names()
    header = ",".join(f'"{column}"' for column in ["", *(f"X{i}" for i in range(1, 179)), "y"])
    lines = [
        f'"X{piece}.{names[of]}",{",".join(map(str, values))},{label}'
        for piece, of, values, label in zip(chunk, recording, x.tolist(), y, strict=True)
    ]
    return "\n".join([header, *lines]) + "\n"


def tsv(labels, x):
    return "".join(
        f"{label}\t" + "\t".join(f"{v:.9g}" for v in row) + "\n"
        for label, row in zip(labels, x, strict=True)
    )


def ts(labels, x, header="@problemName made\n@timeStamps false\n"):
    """x: one (channels, time) a series."""
    dimensions = len(x[0])
    equal = "true" if len({one.shape for one in x}) == 1 else "false"
    kinds = " ".join(dict.fromkeys(labels))
    univariate = "true" if dimensions == 1 else f"false\n@dimensions {dimensions}"
    head = f"{header}@univariate {univariate}\n@equalLength {equal}\n@classLabel true {kinds}\n"
    lines = [
        ":".join(",".join(f"{v:.8g}" for v in channel) for channel in one) + f":{label}\n"
        for label, one in zip(labels, x, strict=True)
    ]
    return head + "@data\n" + "".join(lines)


def quarter_hours(values, clients, first="2011-01-01 00:15:00"):
    """LD2011_2014.txt of values (quarter-hours, clients): semicolons, decimal commas, CRLF."""
    import pandas as pd

    dates = pd.date_range(first, periods=len(values), freq="15min").strftime("%Y-%m-%d %H:%M:%S")
    header = ";".join(f'"{name}"' for name in ["", *clients])
    lines = [
        f'"{date}";' + ";".join(f"{v!r}".replace(".", ",") for v in row)
        for date, row in zip(dates, values.tolist(), strict=True)
    ]
    return "\r\n".join([header, *lines]) + "\r\n"


def unpacked(folder, texts):
    for name, text in texts.items():
        file = folder / PurePosixPath(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder
