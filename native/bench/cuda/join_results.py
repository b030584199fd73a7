"""Joins what the benchmarks of attention and sdpa_peer wrote: python3 join_results.py JOINED PEER OURS...

PEER may be missing; ratios are then to the codec f16. Prints a table and writes a list of
{"codec", "bits", "context", "batch", "us", "bf16_us", "ratio", "gbps"}. The share is that of the byte-ratio limit: the time
that the stored bytes would take at the peer's bytes per second, as a part of the time that was taken.
"""

import json
import os
import sys


def main():
    joined_path, peer_path, *ours_paths = sys.argv[1:]
    ours = []
    for path in ours_paths:
        with open(path) as file:
            ours += json.load(file)
    if os.path.exists(peer_path):
        with open(peer_path) as file:
            peer = json.load(file)
    else:
        peer = [dict(row, bytes=1000 * row["gbps"] * row["us"]) for row in ours if row["codec"] == "f16"]
    limits = {(row["context"], row["batch"]): row for row in peer}
    print(f"{'codec':>11} {'bits':>5} {'context':>8} {'batch':>6} {'us':>10} {'GB/s':>7} {'bf16 us':>10} {'ratio':>6} {'share':>6}")
    for row in ours:
        limit = limits.get((row["context"], row["batch"]))
        row["bf16_us"] = limit["us"] if limit else None
        row["ratio"] = limit["us"] / row["us"] if limit else None
        share = 1000 * row["gbps"] * limit["us"] / limit["bytes"] if limit else None
        bf16, ratio, part = (f"{limit['us']:.2f}", f"{row['ratio']:.2f}", f"{100 * share:.0f}%") if limit else ("-",) * 3
        print(f"{row['codec']:>11} {row['bits']:5.3g} {row['context']:8d} {row['batch']:6d} {row['us']:10.2f} "
              f"{row['gbps']:7.0f} {bf16:>10} {ratio:>6} {part:>6}")
    with open(joined_path, "w") as file:
        json.dump(ours, file, indent=1)


if __name__ == "__main__":
    main()
