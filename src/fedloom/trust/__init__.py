"""Who is who: certificates of organisations and their parties, and lists of who may come in."""
