"""Pages that show numbers: charts, tables and words in one file that needs no network. Knows no bench and no plan."""
