"""Which loss, on which texts, makes a trained draft accepted."""
