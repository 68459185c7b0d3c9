"""Clients' work on a CPU, compiled: client by client, in C."""
