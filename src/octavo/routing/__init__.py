"""Which tier answers: tiers and the gateway's core, the classifier of difficulty, policies. Serves no HTTP."""
