"""Which tier answers: tiers and the gateway in front of them, the classifier of difficulty, policies. Serves no HTTP."""
