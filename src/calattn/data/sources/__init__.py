"""Sources: where images come from. One file for each format; each enters its data sets into `DATASETS`."""
