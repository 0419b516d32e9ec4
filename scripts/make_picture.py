"""Write the picture of README.md, docs/images/splice.png, from the model that `make demo` trained.

python scripts/make_picture.py [progmem-demo/run/model]
"""

import sys
from pathlib import Path

import numpy as np

import progmem
from progmem.data.sample import TEST_SUBJECTS, load_sample
from progmem.demo import splice_figure

PICTURE = Path(__file__).parent.parent / "docs/images/splice.png"


def main() -> None:
    model = progmem.load(sys.argv[1] if len(sys.argv) > 1 else "progmem-demo/run/model")
    sample = load_sample()
    figure = splice_figure(model, sample, np.isin(sample.subject, TEST_SUBJECTS))
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=90)
    print(f"written: {PICTURE}")


if __name__ == "__main__":
    main()
