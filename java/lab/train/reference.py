#!/usr/bin/env python3
"""Writes the logits that any other implementation of the model must reproduce, computed by Hugging Face transformers.

    reference.py --model DIR --tests DIR/tests --out DIR/reference_logits.json

Float32 arithmetic from the bfloat16 weights, at the last position of three prompts: a line of prose, a retrieval of
some 400 bytes and a trace that is asked for its first number. Fails where model.py disagrees.
"""

import argparse
import json

import torch
import transformers

import evaluate
import model
import tasks

TOLERANCE = 1e-4  # float32 rounding through five layers stays well below; any difference in the formulas, far above


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tests", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    ours = model.load(args.model)

    trace = evaluate.read_instances(args.tests, "trace")[0]
    first_number = trace["answer"].index(" ") + 1
    prompts = [
        "It was late in the evening when the old gentleman ",
        evaluate.read_instances(args.tests, "retrieval")[0]["prompt"],
        trace["prompt"] + trace["answer"][:first_number],
    ]
    rows = []
    for prompt in prompts:
        ids = [tasks.BOS, *prompt.encode("ascii")]
        with torch.no_grad():
            logits = theirs(torch.tensor([ids])).logits[0, -1]
            difference = (logits - ours(torch.tensor([ids]))[0, -1]).abs().max().item()
        if difference > TOLERANCE:
            raise SystemExit("model.py and transformers differ by %g" % difference)
        top = logits.topk(3)
        rows.append(
            {
                "prompt": prompt,
                "input_ids": ids,
                "top3": [list(pair) for pair in zip(top.indices.tolist(), top.values.tolist())],
                "logits": logits.tolist(),
            }
        )
    about = "last-position logits, %d values; float32 from the bfloat16 weights, transformers %s on the CPU" % (
        tasks.VOCABULARY,
        transformers.__version__,
    )
    with open(args.out, "w") as file:
        json.dump({"about": about, "prompts": rows}, file)
        file.write("\n")


if __name__ == "__main__":
    main()
