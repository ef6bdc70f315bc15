"""Files, errors, the terminal, hostile input, Parquet and statistics: tools that know nothing of decoding."""
