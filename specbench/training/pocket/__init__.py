"""The bundled pocket models, trained from nothing: tokenizer, target, draft, and the members of an ensemble."""
