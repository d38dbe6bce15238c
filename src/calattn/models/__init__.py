"""Models: CalAttn on anybody's classifier, its predictions, and a head taught to it."""
