"""Servers with OpenAI's completions API, on the same prompts: python examples/server.py NAME=URL [NAME=URL …]

The first one is the baseline, such as an engine without speculation:

    python examples/server.py plain=http://127.0.0.1:8000 eagle3=http://127.0.0.1:8001
"""

import sys

import specbench

servers = sys.argv[1:]
if not servers:
    raise SystemExit(__doc__)
run = specbench.run(suite="math", servers=servers, limit=10, baseline=servers[0].partition("=")[0])
print(run.summary[["task", "method", "accuracy", "speedup_decode"]])
