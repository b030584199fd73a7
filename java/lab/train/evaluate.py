#!/usr/bin/env python3
"""Measures a saved model in float32 with an uncompressed cache.

    evaluate.py --model DIR --tests DIR/tests --out metrics.json [--fresh 500 --books gutenberg-val.txt]

Per task: exact match under greedy decoding, token by token from a KV cache; byte accuracy of the answer under teacher
forcing; mean share of the answer before the first wrong byte. Per text file: bits per byte, overall and from position
512 on. --fresh measures that many further instances a task under another seed, by teacher forcing alone (greedy
decoding writes the answer exactly if and only if every byte is the most likely one after the right ones before it).
"""

import argparse
import glob
import json
import math
import os

import torch
import torch.nn.functional as F

import model
import tasks


@torch.no_grad()
def greedy(decoder, prompts, counts):
    """What the model writes after each prompt (lists of tokens): counts[i] tokens for prompt i."""
    device = decoder.cos.device
    s, batch = decoder.shape, len(prompts)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    longest, new = int(lengths.max()), max(counts)
    ids = torch.full((batch, longest), tasks.PAD, device=device)
    for i, prompt in enumerate(prompts):
        ids[i, : len(prompt)] = torch.tensor(prompt, device=device)

    room = (batch, s.kv_heads, longest + new, s.head_dim)
    cache = [(torch.zeros(room, device=device), torch.zeros(room, device=device)) for _ in range(s.layers)]
    x = decoder.model.embed_tokens(ids)
    for block, (keys, values) in zip(decoder.model.layers, cache):
        normed = block.input_layernorm(x)
        q, k, v = block.self_attn.project(normed, decoder.cos[:longest], decoder.sin[:longest])
        keys[:, :, :longest], values[:, :, :longest] = k, v
        x = x + block.self_attn.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
        x = x + block.mlp(block.post_attention_layernorm(x))
    rows = torch.arange(batch, device=device)
    token = decoder.logits(x[rows, lengths - 1]).argmax(-1)

    written = [token]
    at = torch.arange(longest + new, device=device)
    for n in range(new - 1):
        # Rows are padded behind their prompts; a new token takes the place of the padding, so that positions stay dense.
        position = (lengths + n).clamp(max=tasks.CONTEXT - 1)
        cos, sin = decoder.cos[position][:, None, None], decoder.sin[position][:, None, None]
        seen = (at <= position[:, None])[:, None, None]
        x = decoder.model.embed_tokens(token[:, None])
        for block, (keys, values) in zip(decoder.model.layers, cache):
            q, k, v = block.self_attn.project(block.input_layernorm(x), cos, sin)
            keys[rows, :, position], values[rows, :, position] = k[:, :, 0], v[:, :, 0]
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen, enable_gqa=True)
            x = x + block.self_attn.merge(y)
            x = x + block.mlp(block.post_attention_layernorm(x))
        token = decoder.logits(x[:, 0]).argmax(-1)
        written.append(token)
    written = torch.stack(written, 1).tolist()
    return [row[:count] for row, count in zip(written, counts)]


@torch.no_grad()
def teacher_forced(decoder, instances, batch=50):
    """Per instance, whether each byte of the answer is the most likely one given the right bytes before it."""
    device = decoder.cos.device
    right = []
    for start in range(0, len(instances), batch):
        some = instances[start : start + batch]
        whole = [[tasks.BOS, *(r["prompt"] + r["answer"]).encode("ascii")] for r in some]
        ids = torch.full((len(some), max(map(len, whole))), tasks.PAD)
        for i, row in enumerate(whole):
            ids[i, : len(row)] = torch.tensor(row)
        ids = ids.to(device)
        hit = (decoder(ids[:, :-1]).argmax(-1) == ids[:, 1:]).cpu()
        for i, r in enumerate(some):
            first = len(r["prompt"])
            right.append(hit[i, first : first + len(r["answer"])].tolist())
    return right


def summary(right):
    exact = [all(r) for r in right]
    prefix = [(r.index(False) if False in r else len(r)) / len(r) for r in right]
    return {
        "n": len(right),
        "exact": sum(exact) / len(exact),
        "byte_accuracy": sum(map(sum, right)) / sum(map(len, right)),
        "correct_prefix": sum(prefix) / len(prefix),
    }


def by_class(instances, exact):
    """Exact match per size class, for the task whose instances have one."""
    key = next((k for k in ("context_bytes", "steps") if k in instances[0]["meta"]), None)
    sizes = sorted({r["meta"][key] for r in instances}) if key else []
    found = {}
    for size in sizes:
        some = [e for r, e in zip(instances, exact) if r["meta"][key] == size]
        found[str(size)] = sum(some) / len(some)
    return found


@torch.no_grad()
def bits_per_byte(decoder, data, batch=16):
    """Every byte of every window is predicted, the first one from BOS alone."""
    device = decoder.cos.device
    windows = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, tasks.CONTEXT).long()
    bits = []
    for some in windows.split(batch):
        some = some.to(device)
        ids = torch.cat((torch.full_like(some[:, :1], tasks.BOS), some[:, :-1]), 1)
        loss = F.cross_entropy(decoder(ids).transpose(1, 2), some, reduction="none")
        bits.append(loss.double().cpu() / math.log(2))
    bits = torch.cat(bits)
    return {
        "bytes": bits.numel(),
        "bpb": bits.mean().item(),
        "bpb_from_512": bits[:, 512:].mean().item(),
        "standard_error": (bits.mean(1).std() / math.sqrt(len(bits))).item(),
    }


def read_instances(tests, task):
    with open(os.path.join(tests, task + ".jsonl")) as file:
        return [json.loads(line) for line in file]


def evaluate(decoder, tests, fresh=0, fresh_filler=()):
    result = {"text": {}, "tasks": {}}
    for path in sorted(glob.glob(os.path.join(tests, "*.bin"))):
        with open(path, "rb") as file:
            result["text"][os.path.splitext(os.path.basename(path))[0]] = bits_per_byte(decoder, file.read())
    for task in tasks.TASKS:
        instances = read_instances(tests, task)
        prompts = [[tasks.BOS, *r["prompt"].encode("ascii")] for r in instances]
        written = greedy(decoder, prompts, [len(r["answer"]) for r in instances])
        exact = [w == list(r["answer"].encode("ascii")) for w, r in zip(written, instances)]
        figures = summary(teacher_forced(decoder, instances))
        figures["exact_teacher_forced"] = figures["exact"]
        figures["exact"] = sum(exact) / len(exact)
        figures["exact_by_size"] = by_class(instances, exact)
        if fresh:
            more = tasks.held_out_instances(task, fresh, "fresh", fresh_filler)
            right = teacher_forced(decoder, more)
            figures["fresh"] = summary(right)
            figures["fresh"]["exact_by_size"] = by_class(more, [all(r) for r in right])
        result["tasks"][task] = figures
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tests", required=True)
    parser.add_argument("--fresh", type=int, default=0)
    parser.add_argument("--books", help="held-out books, for the filler lines of the fresh instances")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    filler = ()
    if args.books:
        with open(args.books, "rb") as file:
            filler = tasks.filler_lines(file.read(), 2000, "fresh")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    result = evaluate(model.load(args.model, device), args.tests, args.fresh, filler)
    with open(args.out, "w") as file:
        json.dump(result, file, indent=1)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
