"""The rooms in which documents are edited by Yjs clients."""
