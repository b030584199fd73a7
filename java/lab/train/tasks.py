"""The three synthetic long-context tasks, as text: generators, and rows of training tokens made of them.

Tokens are bytes; BOS opens every instance and EOS closes it. Each task leans on the KV cache in its own way:

  retrieval   box qmrta holds 40713          facts, in between them lines of books
              box zzkeb holds 99120
              open zzkeb: 99120              one lookup by content, anywhere in the context

  trace       set ka=57 mo=08 te=91          registers that are written once, numbers modulo 100
              run su:ka+mo;ri:su-te;
              su:ka+mo 57+08 su=65           one line a step: the statement is found by order, its operands by name;
              ri:su-te 65-91 ri=74           every later line builds on the earlier ones, so that errors accumulate

  copy        repeat x81Qa0…                 a random string: only exact recall helps
              > x81Qa0…

An instance is a list of (text, kind). Kind PROMPT is given; every other kind is what the model must write, and says
how much a byte of it counts in training. The last newline of an answer is trained, but not part of a test's answer.
"""

import math
import random

BOS, EOS, PAD = 256, 257, 258
VOCABULARY = 264  # 259 are used; a multiple of 8 keeps the matrices aligned

CONTEXT = 2048

PROMPT, TEXT, RETRIEVED, STATEMENT, NUMBER, COPIED = range(6)
KIND_NAMES = ("prompt", "text", "retrieval", "trace-statement", "trace-number", "copy")
# An answer of 5 digits must not drown among 2000 bytes of text; the numbers of a trace are harder than its statements.
KIND_WEIGHTS = (0.0, 1.0, 4.0, 1.0, 2.0, 1.5)

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
ALPHANUMERICS = LETTERS + LETTERS.upper() + DIGITS
REGISTERS = [consonant + vowel for consonant in "bcdfghjklmnpqrstvwxz" for vowel in "aeiou"]

FACT_BYTES = len("box qmrta holds 40713\n")
QUESTION_BYTES = len("open qmrta: 40713\n")
STEP_BYTES = len("su:ka+mo;") + len("su:ka+mo 57+08 su=65\n")
MAX_STEPS = 60
MAX_COPY = 480


def retrieval(rng, context_bytes, questions, filler=(), filler_share=0.0, depth=None):
    """Facts and book lines in about context_bytes, then the questions.

    filler_share is the part of the context that books take; depth (0: oldest, 1: newest) fixes the fact asked about.
    """
    lines, facts, names, used = [], [], set(), 0
    while used + FACT_BYTES <= context_bytes or not facts:
        if filler and facts and rng.random() < filler_share:
            line = filler[rng.randrange(len(filler))]
            if used + len(line) + 1 + FACT_BYTES > context_bytes:
                break
            lines.append(line + "\n")
            used += len(line) + 1
            continue
        name = "".join(rng.choices(LETTERS, k=5))
        if name in names:
            continue
        names.add(name)
        value = "".join(rng.choices(DIGITS, k=5))
        facts.append((name, value))
        lines.append("box %s holds %s\n" % (name, value))
        used += FACT_BYTES
    if depth is not None:
        asked = [facts[min(len(facts) - 1, int(depth * len(facts)))]]
    else:
        asked = []
        while len(asked) < questions:  # every fact once before any is asked again
            asked += rng.sample(facts, min(len(facts), questions - len(asked)))
    segments = [("".join(lines), PROMPT)]
    for name, value in asked:
        segments += [("open %s: " % name, PROMPT), (value + "\n", RETRIEVED)]
    return segments


def trace(rng, steps, inputs=4):
    """A straight-line program and its run. No statement occurs twice, so that each can be found by its text."""
    names = rng.sample(REGISTERS, steps + inputs)
    known, value = names[:inputs], {}
    for name in known:
        value[name] = rng.randrange(100)
    header = "set " + " ".join("%s=%02d" % (name, value[name]) for name in known) + "\n"

    def operand():  # half of them recent: long chains of dependencies
        first = max(0, len(known) - 6) if rng.random() < 0.5 else 0
        return known[rng.randrange(first, len(known))]

    program, run, statements = [], [], set()
    for name in names[inputs:]:
        while True:
            left, sign, right = operand(), rng.choice("+-"), operand()
            if (left, sign, right) not in statements:
                statements.add((left, sign, right))
                break
        a, b = value[left], value[right]
        value[name] = (a + b if sign == "+" else a - b) % 100
        known.append(name)
        statement = "%s:%s%s%s" % (name, left, sign, right)
        program.append(statement + ";")
        run += [
            (statement + " ", STATEMENT),
            ("%02d%s%02d " % (a, sign, b), NUMBER),
            (name + "=", STATEMENT),
            ("%02d\n" % value[name], NUMBER),
        ]
    return [(header + "run " + "".join(program) + "\n", PROMPT)] + run


def copy(rng, length, times=1):
    """A random string, to be written again (several times in a row where the string is short)."""
    string = "".join(rng.choices(ALPHANUMERICS, k=length))
    segments = [("repeat " + string + "\n", PROMPT)]
    for _ in range(times):
        segments += [("> ", PROMPT), (string + "\n", COPIED)]
    return segments


def training_instance(rng, task, progress, room, filler):
    """One instance of at most room bytes. Sizes grow with progress (0..1): short ones teach the lookup itself."""
    growth = min(1.0, progress / 0.25)
    wide = progress > 0.25 and rng.random() < 0.6  # later, mostly sizes spread evenly up to the longest

    def size(low, high):
        if wide:
            return rng.randint(low, high)
        top = low * 4 * (high / (low * 4)) ** growth
        return round(math.exp(rng.uniform(math.log(low), math.log(max(low + 1, top)))))

    if task == "retrieval":
        total = min(size(60, CONTEXT - 8), room)
        share = rng.uniform(0.4, 0.97) if wide else rng.uniform(0.3, 0.6)
        context_bytes = max(FACT_BYTES, min(int(total * share), total - QUESTION_BYTES))
        questions = max(1, (total - context_bytes) // QUESTION_BYTES)
        books = rng.choice((0.0, 0.2, 0.5, 0.7)) if growth == 1.0 else 0.0
        return retrieval(rng, context_bytes, questions, filler, books)
    if task == "trace":
        inputs = rng.randint(2, 5)
        header = len("set \nrun \n") + 6 * inputs
        return trace(rng, max(1, min(size(1, MAX_STEPS), (room - header) // STEP_BYTES)), inputs)
    length = max(1, min(size(4, MAX_COPY), (room - 12) // 2))
    times = max(1, min(rng.randint(1, 4), (room - 9 - length) // (length + 3))) if length < 60 else 1
    return copy(rng, length, times)


def tokens(segments):
    """(tokens, kinds) of one instance; the kind of a token is that of the byte as a target."""
    ids, kinds = [BOS], [PROMPT]
    for text, kind in segments:
        encoded = text.encode("ascii")
        ids += encoded
        kinds += [kind] * len(encoded)
    ids.append(EOS)
    kinds.append(segments[-1][1])
    return ids, kinds


TASKS = ("retrieval", "trace", "copy")
SHARES = (0.36, 0.42, 0.22)  # of the bytes
SMALLEST_ROOM = 120  # less than this at the end of a row stays padding


def training_rows(seed, rows, progress, filler, row_tokens=CONTEXT + 1):
    """Rows packed with instances: (tokens uint16, kinds uint8), both [rows, row_tokens]."""
    import numpy as np

    rng = random.Random(seed)
    ids = np.full((rows, row_tokens), PAD, np.uint16)
    kinds = np.zeros((rows, row_tokens), np.uint8)
    written = [rng.random() * 500 for _ in TASKS]
    for row in range(rows):
        at = 0
        while row_tokens - at >= SMALLEST_ROOM:
            # The task that is furthest behind its share comes next: shares hold by bytes, whatever the sizes are.
            which = min(range(len(TASKS)), key=lambda i: written[i] / SHARES[i])
            instance = training_instance(rng, TASKS[which], progress, row_tokens - at - 2, filler)
            some_ids, some_kinds = tokens(instance)
            n = min(len(some_ids), row_tokens - at)
            ids[row, at : at + n] = some_ids[:n]
            kinds[row, at : at + n] = some_kinds[:n]
            written[which] += n
            at += n
    return ids, kinds


def filler_lines(text, count, seed):
    """Lines of books (bytes) of 30..75 plain characters that no task could take for its own."""
    rng = random.Random(seed)
    lines = []
    while len(lines) < count:
        at = rng.randrange(len(text) - 4000)
        for line in text[at : at + 4000].split(b"\n")[1:-1]:
            line = line.strip().decode("latin-1")
            if 30 <= len(line) <= 75 and line.isascii() and line.isprintable() and not line.startswith(("box ", "open ")):
                lines.append(line)
    return lines[:count]


RETRIEVAL_BYTES = (400, 800, 1200, 1600, 2000)
TRACE_STEPS = (10, 20, 30, 40, 60)


def held_out_instances(task, count, seed, filler):
    """Test instances as dicts. Sizes walk through fixed classes; every other retrieval has book lines in between."""
    rng = random.Random("held out %s %s" % (task, seed))
    rows = []
    for i in range(count):
        if task == "retrieval":
            size = RETRIEVAL_BYTES[i % len(RETRIEVAL_BYTES)]
            books = 0.5 if (i // len(RETRIEVAL_BYTES)) % 2 else 0.0
            depth = rng.random()
            segments = retrieval(rng, size - QUESTION_BYTES, 1, filler, books, depth)
            meta = {"context_bytes": size, "filler": books > 0, "depth": round(depth, 3)}
        elif task == "trace":
            steps = TRACE_STEPS[i % len(TRACE_STEPS)]
            segments = trace(rng, steps)
            meta = {"steps": steps}
        else:
            length = rng.randint(50, MAX_COPY)
            segments = copy(rng, length)
            meta = {"chars": length}
        first = next(n for n, (_, kind) in enumerate(segments) if kind != PROMPT)
        prompt = "".join(text for text, _ in segments[:first])
        answer = "".join(text for text, _ in segments[first:]).rstrip("\n")
        assert 1 + len(prompt) + len(answer) <= CONTEXT
        rows.append({"task": task, "id": i, "prompt": prompt, "answer": answer, "meta": meta})
    return rows
