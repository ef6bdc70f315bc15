"""DiffuSpec: a search for a likely path through a block's slots (arXiv 2510.02358)."""
