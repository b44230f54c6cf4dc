"""What other clients' own code makes of the run that the tests of octavo.bench.compat are about."""
