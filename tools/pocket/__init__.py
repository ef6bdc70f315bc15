"""The pocket documents: problems that are generated from templates, bundled with the tasks and used for training."""
