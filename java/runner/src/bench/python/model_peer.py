"""The same models in PyTorch: bfloat16, cuDNN's attention, a static cache, one CUDA graph a step. Then both side by side.

    python3 model_peer.py --ours model.json --json bench-model.json [--shapes ...] [--contexts ...] [--memory BYTES]
"""

import argparse
import json
import statistics
import time

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu
except ImportError:
    torch = None

SHAPES = {  # vocabulary, hidden, intermediate, layers, heads, kv heads
    "llama-3.1-8b": (128256, 4096, 14336, 32, 32, 8),
    "qwen2.5-7b": (152064, 3584, 18944, 28, 28, 4),
    "llama-2-13b": (32000, 5120, 13824, 40, 40, 40),
}


class Peer:
    def __init__(self, shape):
        vocabulary, hidden, intermediate, self.layers, self.heads, self.kv_heads = SHAPES[shape]
        self.dim = hidden // self.heads

        def weights(rows, width):
            return torch.randn(rows, width, device="cuda", dtype=torch.bfloat16) / width**0.5

        self.embedding = weights(vocabulary, hidden)
        self.head = weights(vocabulary, hidden)
        self.norm = torch.ones(hidden, device="cuda", dtype=torch.bfloat16)
        all_heads = (self.heads + 2 * self.kv_heads) * self.dim
        self.weights = [
            (weights(all_heads, hidden), weights(hidden, self.heads * self.dim), weights(2 * intermediate, hidden), weights(hidden, intermediate))
            for _ in range(self.layers)
        ]
        self.frequencies = 10000.0 ** (-torch.arange(0, self.dim, 2, device="cuda").float() / self.dim)

    def turned(self, x, cosine, sine):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cosine - b * sine, a * sine + b * cosine), dim=-1)

    def step(self, tokens, position, keys, values):
        """tokens [batch]; position [1], where the new rows go: the last of the cache."""
        batch = tokens.shape[0]
        state = self.embedding[tokens]
        angle = position.float() * self.frequencies
        cosine, sine = angle.cos().bfloat16(), angle.sin().bfloat16()
        for layer, (heads, output, gate_up, down) in enumerate(self.weights):
            normed = rms_norm(state, (state.shape[-1],), self.norm, 1e-5)
            rows = linear(normed, heads).view(batch, self.heads + 2 * self.kv_heads, self.dim)
            turned = self.turned(rows[:, : self.heads + self.kv_heads], cosine, sine)
            keys[layer].index_copy_(2, position, turned[:, self.heads :].unsqueeze(2))
            values[layer].index_copy_(2, position, rows[:, self.heads + self.kv_heads :].unsqueeze(2))
            query = turned[:, : self.heads].unsqueeze(2)
            attended = scaled_dot_product_attention(query, keys[layer], values[layer], enable_gqa=self.heads > self.kv_heads)
            state = state + linear(attended.reshape(batch, -1), output)
            normed = rms_norm(state, (state.shape[-1],), self.norm, 1e-5)
            gate, up = linear(normed, gate_up).chunk(2, dim=-1)
            state = state + linear(silu(gate) * up, down)
        logits = linear(rms_norm(state, (state.shape[-1],), self.norm, 1e-5), self.head)
        return logits.argmax(dim=-1)

    def time(self, batch, context):
        """Milliseconds of a step, tokens read back included; the median of 15."""
        shape = (batch, self.kv_heads, context + 8, self.dim)
        keys = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(self.layers)]
        values = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(self.layers)]
        tokens = torch.arange(batch, device="cuda")
        position = torch.tensor([context + 7], device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(2):
                self.step(tokens, position, keys, values)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tokens.copy_(self.step(tokens, position, keys, values))
        times = []
        for _ in range(18):
            start = time.perf_counter()
            graph.replay()
            tokens.cpu()
            times.append(1000 * (time.perf_counter() - start))
        return statistics.median(times[3:])


def measure(args):
    rows = []
    for shape in args.shapes:
        peer = Peer(shape)
        torch.cuda.synchronize()
        weights = torch.cuda.memory_allocated()
        for context in args.contexts:
            try:
                ms = peer.time(1, context)
                rows.append({"kind": "peer single", "shape": shape, "context": context, "ms": ms})
            except torch.OutOfMemoryError:
                rows.append({"kind": "peer single", "shape": shape, "context": context, "error": "out of memory"})
            print(rows[-1], flush=True)
            torch.cuda.empty_cache()
        if 32768 in args.contexts:
            each = 4 * peer.layers * peer.kv_heads * peer.dim * (32768 + 8)
            total = args.memory or torch.cuda.get_device_properties(0).total_memory
            batch = int((min(total, torch.cuda.get_device_properties(0).total_memory) - weights - (3 << 30)) // each)
            while batch > 0:
                try:
                    ms = peer.time(batch, 32768)
                    rows.append({"kind": "peer largest", "shape": shape, "context": 32768, "batch": batch, "ms": ms, "tokens/s": 1000 * batch / ms})
                    print(rows[-1], flush=True)
                    break
                except torch.OutOfMemoryError:
                    batch -= 1
                torch.cuda.empty_cache()
        del peer
        torch.cuda.empty_cache()
    return rows


def find(rows, kind, shape, **wanted):
    for row in rows:
        if row["kind"] == kind and row["shape"] == shape and all(row.get(name) == value for name, value in wanted.items()):
            return row
    return {}


def ratio(a, b):
    return f"{a / b:.2f}" if a and b else "-"


def table(rows, shapes):
    for shape in shapes:
        print(f"\n{shape}: one sequence, ms a token")
        print(f"{'cache':>10} {'context':>8} {'ms':>8} {'16 bits/this':>13} {'PyTorch/this':>13} {'step/kernels':>13}")
        for row in rows:
            if row["kind"] == "single" and row["shape"] == shape and row["precision"] == "FAST":
                base = find(rows, "single", shape, method="f16", context=row["context"], precision="FAST")
                peer = find(rows, "peer single", shape, context=row["context"])
                print(f"{row['method']:>10} {row['context']:8d} {row['ms']:8.3f} {ratio(base.get('ms'), row['ms']):>13} {ratio(peer.get('ms'), row['ms']):>13} {row['step/kernels']:13.3f}")
        print(f"{shape}: the largest batch at 32K")
        print(f"{'cache':>10} {'batch':>6} {'tokens/s':>9} {'batch/16 bits':>14} {'tokens/s/16 bits':>17} {'peak GB':>8}")
        for row in rows:
            if row["kind"] == "largest" and row["shape"] == shape:
                base = find(rows, "largest", shape, method="f16")
                print(f"{row['method']:>10} {row['batch']:6d} {row['tokens/s']:9.0f} {ratio(row['batch'], base.get('batch')):>14} {ratio(row['tokens/s'], base.get('tokens/s')):>17} {row['peak GB']:8.1f}")
        peer = find(rows, "peer largest", shape)
        if peer:
            print(f"{'PyTorch':>10} {peer['batch']:6d} {peer['tokens/s']:9.0f}")
        for row in rows:
            if row["kind"] == "prompt" and row["shape"] == shape:
                print(f"prompt of {row['context']}, {row['method']}, {row['precision']}: {row['tokens/s']:.0f} tokens/s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ours", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=list(SHAPES))
    parser.add_argument("--contexts", type=lambda text: [int(part) for part in text.split(",")], default=[8192, 32768, 131072])
    parser.add_argument("--methods")
    parser.add_argument("--memory", type=int, default=0)
    args = parser.parse_args()
    with open(args.ours) as file:
        rows = json.load(file)
    if torch is None or not torch.cuda.is_available():
        print("No PyTorch with CUDA here: no peer.")
    else:
        with torch.no_grad(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            rows += measure(args)
    table(rows, args.shapes)
    with open(args.json, "w") as file:
        json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
