"""Named questions about stores, asked alike by the server, the notebook widget and the static export.

A query is a plain function in one of the modules here: its first parameter is an `Asked`, the others are keyword-only
and annotated, and their values are parsed and checked from texts. To add one, write it and name it in `registry`.
"""
