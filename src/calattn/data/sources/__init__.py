"""Sources: where images come from. One file for each format; `published.toml` lists the data sets."""
