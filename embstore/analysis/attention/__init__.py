"""The attention of models over corpora."""
