"""The pair of a target with its own first layers as its draft, as YAML.

python tools/recipes/first_layers.py smollm2 10 > early.yaml
"""

import sys

import yaml

from specbench import config

pair, layers = config.load_pair(sys.argv[1]), int(sys.argv[2])
target = pair.target.model_dump(exclude_defaults=True)
described = f"The target of {pair.name} with its first {layers} layers as its draft"
print(yaml.safe_dump({"description": described, "target": target, "draft": {"of": "target", "layers": layers}}), end="")
