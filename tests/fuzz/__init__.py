"""Bad inputs of every kind that kscout reads, made by a seed, and the judge of what they do."""
