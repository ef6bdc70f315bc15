"""Methods in which several models choose the text together."""
