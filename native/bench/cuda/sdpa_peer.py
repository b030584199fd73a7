"""Times PyTorch's scaled_dot_product_attention (cuDNN backend, bfloat16) on decode shapes: the 16-bit peer.

    python3 sdpa_peer.py [--kv-heads 8] [--group 4] [--head-dim 128] [--contexts ...] [--batches ...] [--lengths ...]
                         [--json FILE]

--lengths is a batch of sequences of these lengths: what is timed is as many equal ones with as many tokens in all, for which
its kernels need no padding.

Same method as attend_bench: buffers rotated past the L2 cache, a graph of calls replayed, events, the median.
"""

import argparse
import json
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def numbers(text):
    return [int(part) for part in text.split(",")]


def timed(work):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return 1000.0 * begin.elapsed_time(end)


def time_attention(args, context, batch):
    kv_shape = (batch, args.kv_heads, context, args.head_dim)
    set_bytes = 4 * batch * args.kv_heads * context * args.head_dim
    sets = max(2, (180 << 20) // set_bytes + 1)
    keys = [torch.randn(kv_shape, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
    values = [torch.randn(kv_shape, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
    query_shape = (batch, args.kv_heads * args.group, 1, args.head_dim)
    query = torch.randn(query_shape, device="cuda", dtype=torch.bfloat16)

    def call(i):
        return scaled_dot_product_attention(query, keys[i % sets], values[i % sets], enable_gqa=args.group > 1)

    for i in range(5):
        call(i)
    torch.cuda.synchronize()
    launches = max(4, min(200, int(3000.0 / timed(lambda: call(0)))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            call(i)
    times = [timed(graph.replay) / launches for _ in range(25)][4:]
    del graph
    return statistics.median(times), set_bytes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--contexts", type=numbers, default=[8192, 32768, 131072])
    parser.add_argument("--batches", type=numbers, default=[1, 16])
    parser.add_argument("--lengths", type=numbers)
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.lengths:
        args.batches, args.contexts = [len(args.lengths)], [sum(args.lengths) // len(args.lengths)]
    print(f"PyTorch {torch.__version__} SDPA, cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}")
    print(f"{'context':>8} {'batch':>6} {'us':>10} {'GB/s':>8}")
    rows = []
    with torch.no_grad(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for batch in args.batches:
            for context in args.contexts:
                us, set_bytes = time_attention(args, context, batch)
                print(f"{context:8d} {batch:6d} {us:10.2f} {set_bytes / us / 1000:8.0f}", flush=True)
                rows.append({"context": context, "batch": batch, "us": us, "bytes": set_bytes})
                torch.cuda.empty_cache()
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
