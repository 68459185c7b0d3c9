"""One party of a real federation: what it must know, its own files, its program; the rehearsal."""
