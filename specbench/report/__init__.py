"""From figures to words, tables, plots and pages. Nothing here runs or loads a model."""
