"""Methods that draft from texts: the prompt, a pool, or a datastore."""
