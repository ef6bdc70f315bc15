"""The tables that papers published, our figures next to them, and which of the papers' claims hold in our runs."""
