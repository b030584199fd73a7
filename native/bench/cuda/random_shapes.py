"""Shapes that nothing was tuned for: is attention as quick there as on shapes nearby?

Each shape is drawn at random: codec, head dim, kv heads, query heads a kv head, sequences, tokens. Beside it stands its neighbour:
8 kv heads in one sequence, with as many pages of the same codec, head dim and query heads. `share` is the shape's bytes a second over
the neighbour's; what holds the two apart is how pages are divided among processors, so it should stay near 1.

    python3 random_shapes.py BENCH [--seed N] [--shapes 6]     BENCH is kvasir_cuda_attend_bench
"""

import argparse
import random
import subprocess

PAGE = 128  # tokens


def bytes_a_second(bench, kind, head_dim, kv_heads, group, batch, context):
    """Microseconds and GB/s."""
    command = [bench, "--check", "0", "--kinds", kind, "--head-dim", head_dim, "--kv-heads", kv_heads, "--group", group,
               "--batches", batch, "--contexts", context]
    printed = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout
    numbers = printed.strip().split("\n")[-1].split()
    return float(numbers[4]), float(numbers[5])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("--seed", type=int, default=random.randrange(10**8))
    parser.add_argument("--shapes", type=int, default=6)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    print(f"random shapes, seed {options.seed}")
    print("     codec    d  kv heads  group  batch  context         us    GB/s  neighbour  share")
    for _ in range(options.shapes):
        kind = draw.choice(["uniform:2", "uniform:3", "uniform:4", "pattern:2"])
        head_dim = draw.choice([64, 96, 128, 256])
        kv_heads, group, batch = draw.randint(1, 12), draw.randint(1, 16), draw.randint(1, 20)
        pages = draw.randint(4000, 16000)  # of all kv heads and sequences
        context = max(1, pages // (kv_heads * batch)) * PAGE
        near = max(1, context * kv_heads * batch // 8 // PAGE) * PAGE
        us, rate = bytes_a_second(options.bench, kind, head_dim, kv_heads, group, batch, context)
        _, neighbour = bytes_a_second(options.bench, kind, head_dim, 8, group, 1, near)
        print(f"{kind:>10} {head_dim:4} {kv_heads:9} {group:6} {batch:6} {context:8} {us:10.2f} {rate:7.0f} {neighbour:10.0f}"
              f"  {rate / neighbour:5.2f}", flush=True)


if __name__ == "__main__":
    main()
