"""Resampling: bootstrap replicates of every metric, in memory or over a stream."""
