"""Time on a CPU: does the default reach TS2Vec's accuracy in TS2Vec's time?

    git clone https://github.com/zhihanyue/ts2vec DIR    # their code stays outside this project
    python -m benchmarks.cpu_time --ts2vec DIR --data-dir DATA    # results/cpu_time/<set>.json

Rows of `benchmarks.few_labels` on HAR, a PMT by the default recipe and TS2Vec in turns, each alone
on the same CPU threads (OMP_NUM_THREADS, by default all). Training and embedding count.
"""

import argparse

from benchmarks.few_labels import add_options, config_of, row_arguments
from benchmarks.few_labels_tables import cpu_time_table
from benchmarks.short_training import take_labelled_rows
from benchmarks.side_by_side import add_arguments, run_rows
from progmem.data.datasets import LABELLED
from progmem.probes.classify import SEEDS
from progmem.report import record

ENCODERS = ("trained", "ts2vec")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", default="HAR", choices=LABELLED)
    add_options(parser)
    add_arguments(parser, "cpu_time")
    parser.set_defaults(device="cpu", validation=False)
    chosen = parser.parse_args()
    if chosen.ts2vec is None:
        parser.error("--ts2vec DIR is needed, a checkout of their code")
    if chosen.at_once > 1:
        parser.error("--at-once must be 1: rows side by side would share the threads")
    names = [f"{chosen.set}-{e}-{s}" for s in chosen.seeds for e in ENCODERS]
    rows = run_rows("benchmarks.few_labels", names, chosen, row_arguments(chosen))
    (threads,) = {row.pop("threads") for row in rows}
    result = {
        "config": config_of(rows, chosen), "seeds": chosen.seeds, "label_seeds": SEEDS,
        **record.environment("cpu", chosen.commit), "threads": threads,
        "labelled_rows": take_labelled_rows(rows), "rows": rows,
    }  # fmt: skip
    print(f"written: {record.save('cpu_time', chosen.set, result, folder=chosen.out)}\n")
    print(cpu_time_table([result]))


if __name__ == "__main__":
    main()
