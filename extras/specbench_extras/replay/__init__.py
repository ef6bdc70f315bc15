"""How far recorded texts follow the drafts of a method without a model: `specbench replay`."""
