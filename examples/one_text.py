"""One text, round by round: python examples/one_text.py [METHOD]"""

import sys

import specbench

method = sys.argv[1] if len(sys.argv) > 1 else "csd"
pair = specbench.load_pair("pocket")
answer = specbench.decode("Tom has 3 apples and buys 4 more. How many has he?", pair, method, max_new_tokens=60)
print(answer.text)
print(answer.rounds[["drafted", "accepted", "rescued", "committed", "seconds"]].to_string())
print(f"τ {answer.tau:.2f}")
