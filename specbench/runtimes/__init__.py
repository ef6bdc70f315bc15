"""How a model's forward is computed and where its cache lies. `Session` sits on these; nothing above it knows them."""
