"""Turn the records of runs into figures. Nothing here loads weights or decodes."""
