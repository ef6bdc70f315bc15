"""The plots of `specbench plot`. kinds.py lists them, data.py reads their runs, style.py says how they look."""
