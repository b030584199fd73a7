#!/usr/bin/env python3
"""Writes what the model is measured on: 100 held-out instances a task and windows of held-out books; and what
methods may be tuned on, 24 other instances a task and other windows.

    testsets.py --books gutenberg-val.txt --out ../src/main/resources/dev/kvasir/lab/model/tests

The books must be others than those of the training. Each text file is a row of windows of one context (2048 bytes),
each of which starts at a line; test windows are for reporting, validation windows for tuning.
"""

import argparse
import json
import os

import tasks

TEST_WINDOWS, VALIDATION_WINDOWS = 64, 16
TUNING_INSTANCES = 24
SEED, TUNING_SEED = 2026, 7102


def windows(books, count):
    """Windows spread evenly over the books, none of which holds a document border (byte 0)."""
    cut = []
    for i in range(count):
        at = books.index(b"\n", i * (len(books) // count)) + 1
        window = books[at : at + tasks.CONTEXT]
        while b"\0" in window:
            at += window.index(b"\0") + 1
            window = books[at : at + tasks.CONTEXT]
        assert len(window) == tasks.CONTEXT
        cut.append(window)
    return cut


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--count", type=int, default=100)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    with open(args.books, "rb") as file:
        books = file.read()

    filler = tasks.filler_lines(books, 2000, SEED)
    for task in tasks.TASKS:
        for name, count, seed in ((task, args.count, SEED), (task + "_val", TUNING_INSTANCES, TUNING_SEED)):
            with open(os.path.join(args.out, name + ".jsonl"), "w") as file:
                for row in tasks.held_out_instances(task, count, seed, filler):
                    file.write(json.dumps(row) + "\n")

    # Every fifth window is for validation: 0, 5, 10 …; the test takes the other four in five.
    pool = windows(books, TEST_WINDOWS + VALIDATION_WINDOWS)
    for name, cut in (("val", pool[::5]), ("test", [w for i, w in enumerate(pool) if i % 5])):
        with open(os.path.join(args.out, "gutenberg_%s.bin" % name), "wb") as file:
            file.write(b"".join(cut))


if __name__ == "__main__":
    main()
