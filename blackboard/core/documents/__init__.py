"""The rules of documents: updates as bytes, and the keys that hold them."""
