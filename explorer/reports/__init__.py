"""Reports: what a store holds and what its vectors show, as one HTML page."""
