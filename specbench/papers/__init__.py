"""The tables that papers published, our figures beside them, and which of the papers' claims hold in our runs."""
