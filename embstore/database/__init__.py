"""SQL over stores: tables, functions on vectors, and what is computed by embstore's own search and reducers."""
