"""A method of specbench with its trainer."""
