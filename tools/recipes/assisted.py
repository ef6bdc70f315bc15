"""sps next to transformers' assisted generation, at a constant draft length: how much each round accepts, by position.

    python tools/recipes/assisted.py qwen2.5-coder bfloat16 5 48 results/reference/assisted-qwen2.5-coder.json

Arguments: the pair, the dtype, how many questions, new tokens of each, the file to write. Transformers begins with the
prompt and the first token, as sps drafts after it, so that the rounds stand side by side. In bfloat16 a round may
differ where two tokens were nearly as likely.
"""

import json
import sys
from pathlib import Path

import torch
from real_texts import QUESTIONS
from taken import taken
from transformers.generation.candidate_generator import AssistedCandidateGenerator

import specbench

GAMMA = 6  # suites/methods/chains/sps.yaml


def main(name: str, dtype: str, questions: str, new: str, out: str) -> None:
    pair = specbench.load_pair(name, dtype=dtype, runtime="eager")
    target, draft = pair.models["target"], pair.models["draft"]
    draft.generation_config.update(
        num_assistant_tokens=GAMMA, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
    )
    matches: list[int] = []
    AssistedCandidateGenerator.update_candidate_strategy = (  # what it is told of each round
        lambda self, input_ids, scores, num_matches: matches.append(int(num_matches))
    )
    texts = []
    for question in QUESTIONS[: int(questions)]:
        prompt = question
        if pair.tokenizer.chat_template:
            messages = [{"role": "user", "content": question}]
            prompt = pair.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ours = specbench.decode(prompt, pair, "sps", settings={"gamma": GAMMA}, max_new_tokens=int(new))
        ids = torch.tensor([[*pair.tokenizer(prompt)["input_ids"], ours.tokens[0]]])
        matches.clear()
        with torch.inference_mode():
            made = target.generate(
                ids,
                assistant_model=draft,
                do_sample=False,
                max_new_tokens=int(new) - 1,
                eos_token_id=sorted(pair.eos_ids),
                pad_token_id=min(pair.eos_ids),
                repetition_penalty=1.0,
            )
        rounds = ours.rounds[ours.rounds["drafted"] == GAMMA]["accepted"].tolist()[:-1]  # the last may be cut off
        theirs = matches[: len(rounds)]
        texts.append(
            {
                "question": question,
                "equal text": made[0, ids.shape[1] - 1 :].tolist() == ours.tokens,
                "equal rounds": sum(map(int.__eq__, rounds, theirs)),
                "specbench": rounds,
                "transformers": theirs,
            }
        )
        print(f"{len(texts)}/{questions} {texts[-1]['equal rounds']} of {len(rounds)} rounds are equal", flush=True)
    facts = {
        **taken(pair.device),
        "gamma": GAMMA,
        "rounds": sum(len(text["specbench"]) for text in texts),
        "equal rounds": sum(text["equal rounds"] for text in texts),
        "accepted at least k": {
            engine: [sum(count >= k for text in texts for count in text[engine]) for k in range(1, GAMMA + 1)]
            for engine in ("specbench", "transformers")
        },
        "texts": texts,
    }
    Path(out).write_text(json.dumps(facts, indent=1) + "\n")
    print({key: facts[key] for key in ("rounds", "equal rounds", "accepted at least k")})


if __name__ == "__main__":
    main(*sys.argv[1:])
