"""Joins what decode_bench and sdpa_peer wrote: python3 join_results.py OURS PEER JOINED

PEER may be missing; ratios are then to the codec f16. Prints a table and writes a list of
{"codec", "bits", "context", "batch", "us", "bf16_us", "ratio", "gbps"}.
"""

import json
import os
import sys


def main():
    ours_path, peer_path, joined_path = sys.argv[1:]
    with open(ours_path) as file:
        ours = json.load(file)
    if os.path.exists(peer_path):
        with open(peer_path) as file:
            peer = json.load(file)
    else:
        peer = [row for row in ours if row["codec"] == "f16"]
    limits = {(row["context"], row["batch"]): row["us"] for row in peer}
    print(f"{'codec':>11} {'bits':>4} {'context':>8} {'batch':>6} {'us':>10} {'GB/s':>7} {'bf16 us':>10} {'ratio':>6}")
    for row in ours:
        row["bf16_us"] = limits.get((row["context"], row["batch"]))
        row["ratio"] = row["bf16_us"] / row["us"] if row["bf16_us"] else None
        bf16, ratio = (f"{row['bf16_us']:10.2f}", f"{row['ratio']:6.2f}") if row["bf16_us"] else ("-", "-")
        print(f"{row['codec']:>11} {row['bits']:4d} {row['context']:8d} {row['batch']:6d} {row['us']:10.2f} "
              f"{row['gbps']:7.0f} {bf16:>10} {ratio:>6}")
    with open(joined_path, "w") as file:
        json.dump(ours, file, indent=1)


if __name__ == "__main__":
    main()
