#!/usr/bin/env python3
"""Trains the model on one GPU: books and the tasks of tasks.py, mixed in every batch.

    train.py --books gutenberg-train.txt.bz2 --out DIR --steps 15400

Batch i depends on the seed and on i alone. The learning rate falls linearly to zero by --steps, or by --seconds where
those are over sooner, so that a slower machine still ends with an annealed model.
"""

import argparse
import bz2
import json
import math
import multiprocessing
import os
import threading
import time

import tasks

START = time.time()
WARM_UP_STEPS = 200
WORKERS_AHEAD = 4  # batches that each worker may be ahead of the training


def log(*words):
    print("[%6.1f]" % (time.time() - START), *words, flush=True)


def open_books(path):
    return bz2.open(path) if path.endswith(".bz2") else open(path, "rb")


def produce(queue, worker, workers, args, filler):
    """One worker: batches worker, worker + workers, … of task rows."""
    for step in range(worker, args.steps, workers):
        seed = "train %d %d" % (args.seed, step)
        queue.put(tasks.training_rows(seed, args.task_rows, step / args.steps, filler))


class Batches:
    """Task rows from the workers, on the device, in order."""

    def __init__(self, args):
        with open_books(args.books) as file:
            filler = tasks.filler_lines(file.read(4_000_000), 4000, args.seed)
        context = multiprocessing.get_context("spawn")
        self.queues = [context.Queue(WORKERS_AHEAD) for _ in range(args.workers)]
        self.processes = [
            context.Process(target=produce, args=(q, i, args.workers, args, filler), daemon=True)
            for i, q in enumerate(self.queues)
        ]
        for process in self.processes:
            process.start()

    def get(self, step, device):
        import torch

        ids, kinds = self.queues[step % len(self.queues)].get()
        ids, kinds = torch.from_numpy(ids.astype("int16")), torch.from_numpy(kinds)
        if device == "cuda":
            ids, kinds = ids.pin_memory(), kinds.pin_memory()
        return ids.to(device, non_blocking=True).int(), kinds.to(device, non_blocking=True)

    def stop(self):
        for process in self.processes:
            process.terminate()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", required=True, help="training text, .txt or .txt.bz2")
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=15400)
    parser.add_argument("--seconds", type=float, default=1e9, help="training time, start-up not counted")
    parser.add_argument("--text-rows", type=int, default=32, help="rows of 2048 tokens of books in a batch")
    parser.add_argument("--task-rows", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start-from", help="folder with a checkpoint.pt to go on from")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--log-every", type=int, default=200)
    parser.add_argument("--shape", default="{}", help="JSON of fields of model.Shape to change, for trials")
    args = parser.parse_args()

    batches = Batches(args)
    books = {}

    def read_books():
        with open_books(args.books) as file:
            books["bytes"] = file.read()

    reader = threading.Thread(target=read_books)
    reader.start()  # unpacking takes seconds: meanwhile the libraries load

    import torch
    import torch.nn.functional as F

    import model

    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    decoder = model.Decoder(model.Shape(**json.loads(args.shape))).to(device)
    parameters = sum(p.numel() for p in decoder.parameters())
    log("torch", torch.__version__, device, "parameters", parameters)
    if args.start_from:
        decoder.load_state_dict(torch.load(os.path.join(args.start_from, "checkpoint.pt"), map_location=device))

    matrices = [p for n, p in decoder.named_parameters() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in decoder.named_parameters() if not (p.dim() == 2 and "embed" not in n)]
    optimiser = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=args.learning_rate,
        betas=(0.9, 0.95),
        fused=device == "cuda",
    )
    weights = torch.tensor(tasks.KIND_WEIGHTS, device=device)

    def weigh(states, targets, kinds):
        logits = decoder.logits(states)  # outside autocast: rounded logits would blur small differences
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
        weight = weights[kinds]
        return (loss * weight).sum() / weight.sum(), loss.detach(), logits.argmax(-1) == targets

    if not args.no_compile:
        for block in decoder.model.layers:  # all blocks share one compiled form: far quicker than the whole model
            block.compile()
        weigh = torch.compile(weigh)

    reader.join()
    text = torch.frombuffer(bytearray(books.pop("bytes")), dtype=torch.uint8).to(device)
    generator = torch.Generator(device=device)
    generator.manual_seed(args.seed)
    within = torch.arange(tasks.CONTEXT + 1, device=device)

    def batch(step):
        task_ids, task_kinds = batches.get(step, device)
        at = torch.randint(len(text) - tasks.CONTEXT, (args.text_rows, 1), device=device, generator=generator)
        rows = text[at + within].int()
        rows[:, 0] = tasks.BOS
        ids = torch.cat((rows, task_ids)).long()
        kinds = torch.cat((torch.full_like(rows, tasks.TEXT), task_kinds.int()))
        return ids[:, :-1], ids[:, 1:], kinds[:, 1:]

    def figures(loss, right, kinds):
        row = {}
        for kind, name in enumerate(tasks.KIND_NAMES):
            mask = kinds == kind
            if kind != tasks.PROMPT and mask.any():
                row[name] = [round(loss[mask].mean().item() / math.log(2), 4), round(right[mask].float().mean().item(), 5)]
        return row

    log("books", len(text), "bytes; training")
    history, begun, step = [], None, 0
    while step < args.steps:
        elapsed = time.time() - begun if begun else 0.0
        progress = max(step / args.steps, elapsed / args.seconds)
        if progress >= 1.0:
            break
        rate = args.learning_rate * min((step + 1) / WARM_UP_STEPS, 1.0 - progress)
        for group in optimiser.param_groups:
            group["lr"] = rate
        inputs, targets, kinds = batch(step)
        with torch.autocast(device, dtype=torch.bfloat16):
            states = decoder.states(inputs)
        total, loss, right = weigh(states, targets, kinds)
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        step += 1
        if begun is None:
            total.item()
            begun = time.time()
            log("first step, compilation included: loss %.3f" % total.item())
        elif step % 10 == 0:
            total.item()  # the clock that drives the schedule must not run ahead of the device
        if step % args.log_every == 0:
            seconds = time.time() - begun
            row = {"step": step, "seconds": round(seconds, 1), "rate": round(rate, 6), "norm": round(norm.item(), 3)}
            row.update(figures(loss, right, kinds))
            row["tokens_per_s"] = round((step - 1) * inputs.numel() / seconds)
            history.append(row)
            log(json.dumps(row))
    seconds = time.time() - begun
    batches.stop()
    log("trained", step, "steps in %.1f s" % seconds)

    model.save(decoder, args.out)
    torch.save(decoder.state_dict(), os.path.join(args.out, "checkpoint.pt"))
    with open(os.path.join(args.out, "training.json"), "w") as file:
        about = {
            "arguments": vars(args),
            "parameters": parameters,
            "steps": step,
            "seconds": round(seconds, 1),
            "tokens": step * (args.text_rows + args.task_rows) * tasks.CONTEXT,
            "history": history,
        }
        json.dump(about, file)


if __name__ == "__main__":
    main()
