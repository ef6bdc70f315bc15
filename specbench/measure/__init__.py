"""The main loop (loop.py): a plan is carried out, document by document, and recorded in a run folder."""
