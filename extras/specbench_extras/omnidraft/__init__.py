"""OmniDraft: one draft for targets of any tokenizer (arXiv 2507.02659)."""
