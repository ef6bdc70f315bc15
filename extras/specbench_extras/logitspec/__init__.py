"""LogitSpec: the last logits guess the token after the next one."""
