"""What to buy, what to set, what it costs. Knows sums and searches; serves nothing."""
