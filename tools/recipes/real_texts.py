"""Ten texts of a real pair, by specbench and by transformers' generate on the same weights: are they equal?

    python tools/recipes/real_texts.py qwen2.5-coder bfloat16 static results/reference/real-texts-qwen2.5-coder.json

Vanilla decoding and prompt lookup are compared, and sps where the pair has a draft. In bfloat16 a text may differ where
two tokens were nearly as likely: the file says how far apart they were.
"""

import json
import sys
from pathlib import Path

import torch
from taken import taken

import specbench

NEW = 64  # tokens of an answer
QUESTIONS = (
    "Write a Python function that returns the second largest number of a list.",
    "What does the SQL keyword HAVING do? Answer in one sentence.",
    "Write a bash command that counts the lines of all .py files below this folder.",
    "Explain in two sentences what a hash table is.",
    "Write a Python function is_palindrome(text) that ignores case and spaces.",
    "A train leaves at 9:40 and arrives at 11:05. How long does it take?",
    "Rewrite this sentence in the past tense: The children build a tower and count the bricks.",
    "Write a regular expression that matches dates such as 2024-07-15.",
    "What is the difference between a list and a tuple in Python?",
    "Write a C function that swaps two integers.",
)


def main(name: str, dtype: str, runtime: str, out: str) -> None:
    pair = specbench.load_pair(name, dtype=dtype, runtime=runtime)
    model, tokenizer = pair.models["target"], pair.tokenizer
    methods = ["vanilla", "pld", *(["sps"] if "draft" in pair.models else [])]
    texts = []
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        ends = sorted(pair.eos_ids)
        with torch.inference_mode():
            made = model.generate(
                ids,
                do_sample=False,
                max_new_tokens=NEW,
                eos_token_id=ends,
                pad_token_id=ends[0],
                repetition_penalty=1.0,
            )
        expected = made[0, ids.shape[1] :].tolist()
        rows = {}
        for method in methods:
            got = specbench.decode(prompt, pair, method, max_new_tokens=NEW).tokens
            rows[method] = "equal" if got == expected else difference(model, ids[0].tolist(), got, expected)
        texts.append({"question": question, "tokens": len(expected), **rows})
        print(f"{len(texts)}/{len(QUESTIONS)} {rows}", flush=True)
    facts = {
        **taken(pair.device),
        "equal": {method: sum(text[method] == "equal" for text in texts) for method in methods},
        "texts": texts,
    }
    Path(out).write_text(json.dumps(facts, indent=1) + "\n")
    print(facts["equal"], "of", len(texts))


def difference(model: torch.nn.Module, prompt: list[int], got: list[int], expected: list[int]) -> str:
    """Where two texts part, and how far apart the two tokens' logits are there, of the spread of all."""
    place = next(i for i, (one, other) in enumerate(zip(got, expected, strict=False)) if one != other)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + expected[:place]])).logits[0, -1].float()
    gap = float((logits[expected[place]] - logits[got[place]]).abs() / logits.std())
    return f"differs at token {place}, gap {gap:.4f} of the spread"


if __name__ == "__main__":
    main(*sys.argv[1:])
