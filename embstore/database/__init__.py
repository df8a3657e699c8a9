"""SQL over stores: tables that read only what a statement needs, and functions on vectors."""
