"""Small scripts, each run by the tests."""
