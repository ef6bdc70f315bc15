"""Methods, trainings and analyses of single papers, a folder each; specbench finds them by entry points."""
