"""One module a contract: each writes the golden files of its contract from the document alone."""
