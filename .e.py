from pathlib import Path

p = Path("embstore/store/index.py")
t = p.read_text()
a = """        spread: dict[str, Labels] = {
            name: _FieldLabels(own, lambda: self.document_of(self.sentence)) for name, own in self.fields.items()
        }
        object.__setattr__(self, "labels", {**self.own_labels, **spread})
"""
print(t.count(a))
t = t.replace(
    a,
    '''        object.__setattr__(self, "labels", {**self.own_labels, **self.spread_fields()})

    def spread_fields(self) -> dict[str, Labels]:
        """Return the fields of documents as labels of rows."""
        return {name: _FieldLabels(own, lambda: self.document_of(self.sentence)) for name, own in self.fields.items()}
''',
)
p.write_text(t)
