"""The command line that starts an engine of others with a pair and a method, so that it can be measured."""
