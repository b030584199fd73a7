"""The first table of docs/performance.md from what ci/bench-gpu wrote: python3 document.py BENCH_GPU_JSON

A row for each codec and width, microseconds and the ratio to the peer, a column for each context and batch; the row of the peer first.
"""

import json
import sys

NAMES = {
    "added 2": "pattern 2, every page has added one",
    "spectral 2": "spectral, 2 code bits (2.2 in all)",
    "tiered": "tiered, 2.64-bit keys, 2-bit values",
    "tiered+4": "tiered, 2.64-bit keys, 4-bit values",
    "commvq-fast 1": "commvq 1, `Precision.FAST`",
    "commvq-fast 2": "commvq 2, `Precision.FAST`",
}


def microseconds(us):
    return f"{us:.0f}" if us >= 1000 else f"{us:.1f}"


def main():
    with open(sys.argv[1]) as file:
        rows = json.load(file)
    columns = sorted({(row["batch"], row["context"]) for row in rows})
    table, peer = {}, {}
    for row in rows:
        codec = row["codec"]
        name = NAMES.get(codec) or NAMES.get(f"{codec} {row['bits']:g}") or f"{codec} {row['bits']:g}"
        column = (row["batch"], row["context"])
        ratio = f" ({row['ratio']:.2f})" if row["ratio"] else ""
        table.setdefault(name, {})[column] = microseconds(row["us"]) + ratio
        if row["bf16_us"]:
            peer[column] = microseconds(row["bf16_us"])
    print("| µs (ratio to bf16) | " + " | ".join(f"{context // 1024}K B={batch}" for batch, context in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name, cells in {"bf16, cuDNN": peer, **table}.items():
        print(f"| {name} | " + " | ".join(cells.get(column, "") for column in columns) + " |")


if __name__ == "__main__":
    main()
