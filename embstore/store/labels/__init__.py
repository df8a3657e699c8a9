"""Label columns that are added to a store after its extraction."""
