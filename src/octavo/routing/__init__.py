"""Which tier answers: labels, the classifier of difficulty, thresholds and policies. Knows no HTTP."""
