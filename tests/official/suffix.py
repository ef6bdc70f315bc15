"""Makes suffix.json: drafts of ArcticInference's own SuffixDecoding. Call with a folder that holds a checkout of it:

python tests/official/suffix.py ARCTIC tests/official/suffix.json

ARCTIC is github.com/snowflakedb/ArcticInference at 9d464388. Its csrc/suffix_decoding/suffix_tree.cc is compiled with
g++ (C++20) behind a few functions for ctypes, and its arctic_inference/suffix_decoding/cache.py is executed with them;
called are start_request, add_active_response and speculate of SuffixDecodingCache, as its vLLM plugin calls them.
"""

import ctypes
import json
import random
import subprocess
import sys
import tempfile
import types
from pathlib import Path

SHIM = """
#include "suffix_tree.h"
extern "C" {
void* make(int depth) { return new SuffixTree(depth); }
void extend(void* tree, int id, const int* tokens, int count) {
    ((SuffixTree*)tree)->extend(id, std::span<const int32_t>(tokens, count));
}
int draft(void* tree, const int* text, int count, int most, float factor, float offset, float least, int branching,
          int* tokens, int* parents, float* score) {
    Draft found = ((SuffixTree*)tree)->speculate(std::span<const int32_t>(text, count), most, factor, offset, least,
                                                 branching);
    std::copy(found.token_ids.begin(), found.token_ids.end(), tokens);
    std::copy(found.parents.begin(), found.parents.end(), parents);
    *score = found.score;
    return found.token_ids.size();
}
}
"""


def official(checkout: Path):
    """SuffixDecodingCache."""
    folder = Path(tempfile.mkdtemp())
    (folder / "shim.cc").write_text(SHIM)
    source = checkout / "csrc/suffix_decoding"
    command = ["g++", "-std=c++20", "-O2", "-shared", "-fPIC", f"-I{source}", "shim.cc", str(source / "suffix_tree.cc")]
    subprocess.run([*command, "-o", "tree.so"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "tree.so"))
    library.make.restype = ctypes.c_void_p

    class SuffixTree:
        def __init__(self, depth):
            self.tree = ctypes.c_void_p(library.make(depth))

        def extend(self, number, tokens):
            library.extend(self.tree, number, (ctypes.c_int * len(tokens))(*tokens), len(tokens))

        def speculate(self, text, most, factor, offset, least, branching):
            tokens, parents, score = (ctypes.c_int * 99)(), (ctypes.c_int * 99)(), ctypes.c_float()
            reals = [ctypes.c_float(number) for number in (factor, offset, least)]
            content = (ctypes.c_int * len(text))(*text)
            found = (tokens, parents, ctypes.byref(score))
            count = library.draft(self.tree, content, len(text), most, *reals, int(branching), *found)
            lists = {"token_ids": tokens[:count], "parents": parents[:count], "probs": []}
            return types.SimpleNamespace(**lists, score=score.value, match_len=0)

    for name in ("arctic_inference", "arctic_inference.suffix_decoding", "arctic_inference.suffix_decoding._C"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__dict__.update(SuffixTree=SuffixTree, Draft=object)
    names = {"__name__": "arctic_inference.suffix_decoding.cache"}
    sys.modules[names["__name__"]] = types.ModuleType(names["__name__"])
    exec((checkout / "arctic_inference/suffix_decoding/cache.py").read_text(), names)
    return names["SuffixDecodingCache"]


def case(number: int, cache) -> dict:
    """Texts one after the other, each a prompt and the tokens of its rounds, and what is drafted after each round."""
    rng = random.Random(number)
    alphabet, depth, most = 2 + number % 5, (64, 12, 64)[number % 3], (32, 6, 16)[number // 2 % 3]
    tree, kept = bool(number % 2), number % 4 > 1  # trees or chains; whether earlier answers are searched

    def some(length):
        if rng.random() < 0.3:
            return [place % alphabet for place in range(length)]
        return [rng.randrange(alphabet) for _ in range(length)]

    answers = cache(depth, -1 if kept else 0)
    texts = []
    for request in range(3):
        prompt = some(rng.randrange(1, 90 if number % 3 else 30))
        answers.start_request(request, prompt)
        rounds, drafts, text = [some(rng.randrange(1, 6)) for _ in range(rng.randrange(2, 9))], [], list(prompt)
        for tokens in rounds:
            text += tokens
            answers.add_active_response(request, tokens)
            found = answers.speculate(request, text, most, 1.0, 0.0, 0.1, tree)
            drafts.append([found.token_ids, found.parents, round(found.score, 4)])
        answers.stop_request(request)
        texts.append({"prompt": prompt, "rounds": rounds, "drafts": drafts})
    return {"depth": depth, "gamma": most, "tree": tree, "answers": kept, "texts": texts}


def main(checkout: str, out: str, count: str = "24") -> None:
    cache = official(Path(checkout))
    cases = [case(number, cache) for number in range(int(count))]
    Path(out).write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
