"""The bars that kernels on an H200 are held to, beside what a run of ci/bench-gpu made: python3 bars.py FOLDER

FOLDER has what the benchmarks wrote: bench-gpu.json, shape-*.json and shape-*-peer.json, and the texts of those that print what they
time. Prints a row for each bar, then "N of M bars met"; where a figure is missing, its bar is not met. A ratio is the time that cuDNN's
attention over bfloat16 takes, over ours.
"""

import json
import os
import re
import sys
from dataclasses import dataclass


@dataclass
class Bar:
    name: str
    bar: float
    now: float | None
    unit: str = ""
    at_most: bool = False

    def met(self):
        return self.now is not None and (self.now <= self.bar if self.at_most else self.now >= self.bar)


class Run:
    def __init__(self, folder):
        self.folder = folder

    def text(self, name):
        """A file, empty where there is none."""
        path = os.path.join(self.folder, name)
        if not os.path.exists(path):
            return ""
        with open(path) as file:
            return file.read()

    def rows(self, name):
        return json.loads(self.text(name) or "[]")

    def ratio(self, codec, context, batch):
        """Of "uniform 2", or of a codec that was timed with one width only."""
        for row in self.rows("bench-gpu.json"):
            if codec in (row["codec"], f"{row['codec']} {row['bits']:g}") and (row["context"], row["batch"]) == (context, batch):
                return row["ratio"]
        return None

    def shape(self, name, batch):
        """The ratio at another shape."""
        ours = [row for row in self.rows(f"shape-{name}.json") if row["batch"] == batch]
        peer = [row for row in self.rows(f"shape-{name}-peer.json") if row["batch"] == batch]
        return peer[0]["us"] / ours[0]["us"] if ours and peer else None

    def trained(self, stages, context):
        """The ratio of CommVQ with tables as trained ones are."""
        peer = [row["us"] for row in self.rows("peer.json") if (row["context"], row["batch"]) == (context, 1)]
        ours = self.number("commvq-trained.txt", rf"^ *{stages} +fast +\d+ +{context} +1 +([\d.]+)")
        return peer[0] / ours if peer and ours else None

    def numbers(self, name, pattern):
        """What the pattern finds in a text, line by line."""
        return [float(found) for found in re.findall(pattern, self.text(name), re.MULTILINE)]

    def number(self, name, pattern):
        found = self.numbers(name, pattern)
        return found[0] if found else None

    def prompt(self, precision):
        return self.number(f"prompt-{precision}.txt", r"context +32768, chunk +2048: .* ([\d.]+) TFLOP/s")

    def shrinking(self, wide):
        rate = self.number("pages.txt", rf"^shrink fragments {wide} to \d+, apart \[in\] .* (\d+) GB/s")
        return rate and rate / 1000

    def ragged(self):
        """How much longer sequences of all lengths take than equal ones."""
        rows = self.rows("shape-ragged.json")
        return 100 * (rows[0]["us"] / rows[1]["us"] - 1) if len(rows) == 2 else None


def bars(run):
    short, middle, long = 8192, 32768, 131072
    yield Bar("uniform 2, 128K B=1", 4.75, run.ratio("uniform 2", long, 1))
    yield Bar("uniform 2, 32K B=16", 6.24, run.ratio("uniform 2", middle, 16))
    yield Bar("uniform 2, 8K B=1", 1.71, run.ratio("uniform 2", short, 1))
    yield Bar("uniform 4, 128K B=1", 3.10, run.ratio("uniform 4", long, 1))
    yield Bar("uniform 4, 32K B=16", 3.37, run.ratio("uniform 4", middle, 16))
    yield Bar("uniform 2, 28 query heads on 4, 64K B=4", 4.5, run.shape("28-4", 4))
    yield Bar("uniform 2, 64 query heads on 8, 128K B=1", 4.5, run.shape("64-8", 1))
    yield Bar("the same, B=8", 5.5, run.shape("64-8", 8))
    yield Bar("uniform 2, 24 query heads on 8, head dim 96, 64K B=4", 5.38, run.shape("24-8-96", 4))
    yield Bar("pattern 2, 128K B=1", 4.2, run.ratio("pattern 2", long, 1))
    yield Bar("pattern 2, 32K B=16", 5.5, run.ratio("pattern 2", middle, 16))
    yield Bar("the same, every page has added one, 128K B=1", 3, run.ratio("added", long, 1))
    yield Bar("the same, 32K B=16", 4, run.ratio("added", middle, 16))
    yield Bar("tiered, 2.64-bit keys, 128K B=1", 3.5, run.ratio("tiered", long, 1))
    yield Bar("tiered, 2.64-bit keys, 32K B=16", 4, run.ratio("tiered", middle, 16))
    yield Bar("spectral, 2 code bits, 128K B=1", 3, run.ratio("spectral", long, 1))
    yield Bar("spectral, 2 code bits, 32K B=16", 4, run.ratio("spectral", middle, 16))
    yield Bar("commvq 1, tables as trained, fast, 128K B=1", 0.7, run.trained(11, long))
    yield Bar("commvq 2, tables as trained, fast, 128K B=1", 0.4, run.trained(21, long))
    kmeans = run.number("patterns.txt", r"^k-means, 1 side, 10 steps: +([\d.]+) us")
    matching = run.number("patterns.txt", r"residuals, keys: +([\d.]+) us")
    sealing = run.number("patterns.txt", r"residuals, both sides: +([\d.]+) us")
    yield Bar("k-means over 32K tokens, 32 patterns, 10 steps", 1.01, kmeans and kmeans / 1000, " ms", at_most=True)
    yield Bar("matching 32K tokens", 0.34, matching and matching / 1000, " ms", at_most=True)
    yield Bar("sealing 32K tokens with patterns", 0.63, sealing and sealing / 1000, " ms", at_most=True)
    for wide, bar in ((16, 2.5), (8, 2.2), (4, 1.95)):
        yield Bar(f"shrinking {wide} to {wide // 2} bits", bar, run.shrinking(wide), " TB/s")
    yield Bar("sequences of 100 to 128K tokens in one launch", 10, run.ragged(), " % longer than equal ones", at_most=True)
    yield Bar("2048 tokens of a prompt over 32K, exact", 350, run.prompt("exact"), " TFLOP/s")
    yield Bar("2048 tokens of a prompt over 32K, fast", 450, run.prompt("fast"), " TFLOP/s")
    for number, share in enumerate(run.numbers("random-shapes.txt", r"^ *\w+:\d .* ([\d.]+)$") or [None], 1):
        yield Bar(f"random shape {number}, share of its neighbour's pace", 0.8, share)


def main():
    run = Run(sys.argv[1])
    met = [(bar, bar.met()) for bar in bars(run)]
    for bar, good in met:
        now = "-" if bar.now is None else f"{bar.now:.2f}"
        print(f"{bar.name:<56} {now:>7}{bar.unit}, {'at most' if bar.at_most else 'at least'} {bar.bar:g}: {'met' if good else 'NOT MET'}")
    print(f"{sum(good for _, good in met)} of {len(met)} bars met")


if __name__ == "__main__":
    main()
