"""Models of your own: python examples/own_pair.py [TARGET DRAFT]

Each is a folder with safetensors, a name on the hub (fetched if it is missing here), or a GGUF file.
"""

import sys

import specbench

target, draft = sys.argv[1:3] if len(sys.argv) > 2 else ("bundled:target", "bundled:draft")
with specbench.permitted(fetch_models=True):
    pair = specbench.load_pair(f"target={target},draft={draft}")
for method in ("vanilla", "sps", "pld"):
    answer = specbench.decode("Tom has 3 apples and buys 4 more. How many has he?", pair, method, max_new_tokens=60)
    print(f"{method:8} τ {answer.tau:.2f}  {answer.text!r}")
